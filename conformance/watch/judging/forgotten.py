"""Ranks that average their weights: do they leave out tensors whose modules they average otherwise?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from conformance.watch.judging.findings import Finding, Findings, said
from conformance.watch.judging.windows import Window

_OFTEN = 3


@dataclass
class _Met:
    """Of an optimizer. times: how often ranks had other weights after a step, and some of them equal before the next
    one. equal: all that were. left: those that stayed what each rank had, each time."""

    times: int = 0
    equal: set[int] = field(default_factory=set)
    left: set[int] = field(default_factory=set)
    first: Window | None = None


class Forgotten:
    """Of the processes that train together.

    Ranks that keep some weights for themselves, as personal heads or norms, keep modules, or tensors of a kind in all
    of them. One tensor beside others of its module, and of its kind, that all become equal was lost on the way."""

    def __init__(self, ranks: int, findings: Findings) -> None:
        self._ranks, self._findings = ranks, findings
        self._of: dict[int, _Met] = {}

    def see(self, before: Sequence[Window], here: Sequence[Window]) -> None:
        """Two steps of all ranks, one after the other."""
        first = here[0]
        if any(one.weights.keys() != first.weights.keys() for one in here):
            return
        if any(one.after.keys() != first.weights.keys() for one in before):
            return
        apart = {number for number in first.weights if len({one.after[number] for one in before}) > 1}
        equal = {number for number in apart if len({one.weights[number] for one in here}) == 1}
        pairs = list(zip(before, here, strict=True))
        left = {n for n in apart - equal if all(then.after[n] == now.weights[n] for then, now in pairs)}
        if not equal:
            return
        of = self._of.setdefault(first.optimizer, _Met(left=left, first=first))
        of.times += 1
        of.equal |= equal
        of.left &= left

    def finish(self) -> None:
        for optimizer, of in self._of.items():
            window, left = of.first, sorted(of.left - of.equal)
            if of.times < _OFTEN or not left or window is None:
                continue
            modules, kinds = zip(*(_parts(window.names[number]) for number in of.equal), strict=True)
            if all(module in modules and kind in kinds for module, kind in (_parts(window.names[n]) for n in left)):
                says = said("average-leaves-out", left=len(left), names=window.named(left))
                effect = said("parameters-differ", parameters=len(left))
                every = tuple(range(self._ranks))
                found = Finding("watch/same-weights", says, window.index, every, window.site, effect, optimizer)
                self._findings.add(found)


def _parts(name: str) -> tuple[str, str]:
    """The name of a module, and that of a tensor in it."""
    module, _, kind = name.rpartition(".")
    return module, kind
