"""Which backward passes are of one loss: those that come from the same calls, and the micro-batches of a window."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from math import isclose

from conformance.watch.judging.multiplied import factor_of
from conformance.watch.judging.windows import Window

_SEVERAL = 3


def kinds(windows: Iterable[Window]) -> set[int]:
    """The calls that their losses come from, but for those of micro-batches that go backward in two places: below one
    line of the script, where a library has the step go through the last of them; or in one line while DDP waits, and in
    another one in the last, where it synchronizes."""
    found = set[int]()
    for window in windows:
        passes = [window.backwards[number] for number in sorted(window.backwards)]
        calls = Counter(one.calls for one in passes)
        waits = [one.waits for one in passes]
        is_of_one_line = len({one.own_calls for one in passes}) == 1
        is_in_turn = len(passes) >= _SEVERAL and waits == [*[True] * (len(passes) - 1), False]
        is_one = _are_alike(window) and _all_but_the_last(window) and (is_of_one_line or is_in_turn)
        found |= {calls.most_common(1)[0][0]} if is_one else calls.keys()
    return found


def may_be_one(windows: Iterable[Window]) -> bool:
    """Whether they may be of one loss all the same, as where the last of several is in a line of its own. Two losses
    may go through batches of one loader in turn."""
    return all(len(kinds([window])) == 1 or (_are_alike(window) and _all_but_the_last(window)) for window in windows)


def _all_but_the_last(window: Window) -> bool:
    """Whether all but the last pass come from the same calls."""
    calls = [window.backwards[number].calls for number in sorted(window.backwards)]
    return len({*calls}) == 2 and len({*calls[:-1]}) == 1


def _are_alike(window: Window) -> bool:
    """Whether each pass has a batch of its own of one loader, and they are made alike, multiplied with the same number,
    and reach the same parameters."""
    passes = [*window.backwards.values()]
    factors = [factor_of(one) for one in passes]
    reached = {number: {one.backward for one in of} for number, of in window.new.items()}
    return (
        all(one.batches == 1 for one in passes)
        and len({(one.loader, one.made_by) for one in passes}) == 1
        and all(isclose(factor, factors[0], rel_tol=1e-6) for factor in factors)
        and all(of >= window.backwards.keys() for of in reached.values())
    )
