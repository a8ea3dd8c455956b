"""Which backward passes are of one loss: those that come from the same calls, and the micro-batches of a window."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from conformance.watch import records
from conformance.watch.judging.windows import Window

_SEVERAL = 3


def kinds(windows: Iterable[Window]) -> set[int]:
    """The calls that their losses come from, but for those of micro-batches, which are of one loss from wherever they
    go backward."""
    found = set[int]()
    for window in windows:
        passes = [*window.backwards.values()]
        calls = Counter(one.calls for one in passes)
        found |= {calls.most_common(1)[0][0]} if _are_micro_batches(passes, calls) else calls.keys()
    return found


def _are_micro_batches(passes: list[records.Backward], calls: Counter[int]) -> bool:
    """Whether each has a batch of its own of one loader, and they go backward in two places as those of one loss do:
    all but one in the first; in the second where DDP is to synchronize; or both below one line of the script, as where
    a library has an optimizer's step go through the last of them."""
    if len(calls) != 2 or any(one.batches != 1 for one in passes) or len({one.loader for one in passes}) > 1:
        return False
    waiting, others = ({one.calls for one in passes if one.waits == waits} for waits in (True, False))
    is_of_the_last = len(passes) >= _SEVERAL and min(calls.values()) == 1
    is_of_one_line = None not in (sites := {one.site and tuple(one.site) for one in passes}) and len(sites) == 1
    return is_of_the_last or is_of_one_line or (bool(waiting and others) and waiting.isdisjoint(others))
