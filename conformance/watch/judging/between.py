"""Detects weights that ranks overwrite or sum between two steps. For averages, see `replicas`."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from conformance.watch.judging.chapter import Chapter, End
from conformance.watch.judging.equations import Case, Together
from conformance.watch.judging.findings import Finding, Findings, Said, said
from conformance.watch.judging.windows import Sketch, Window
from conformance.watch.sizes import WIDTH

_SEVERAL = 4
"""Steps that do the same: all that are seen."""

_ROUNDED = 1e-5
"""Relative to the norm, of a sum over ranks."""


@dataclass
class _Mixed:
    """The steps of an optimizer of all ranks. last: the last. count: steps after which ranks have other weights, but
    equal ones before the next. of: by rank, those where its weights replace all others. summed: by parameter, those
    where weights are summed."""

    last: Together | None = None
    count: int = 0
    of: Counter[int] = field(default_factory=Counter)
    summed: Counter[int] = field(default_factory=Counter)

    def take(self, together: Together) -> None:
        last, self.last = self.last, together
        if last is None:
            return
        here, before = {window.rank: window for window in together.here}, {one.rank: one for one in last.here}
        after = {rank: _after(window) for rank, window in before.items()}
        if not all(after.values()):
            return
        first = together.here[0]
        apart = {n for n in first.weights if len({_bytes(of, n) for of in after.values()}) > 1}
        are_known = before.keys() == here.keys() and all(apart <= of.keys() for of in after.values())
        if not apart or not are_known or any(len({_bytes(one.weights, n) for one in here.values()}) > 1 for n in apart):
            return
        self.count += 1
        for rank, of in after.items():
            is_one = all(_bytes(of, n) == _bytes(first.weights, n) for n in apart)
            self.of[rank] += is_one and not _is_chosen(first) and _is_own(last, before[rank])
        for number in apart:
            total, now = np.sum([of[number] for of in after.values()], 0), np.array(first.weights[number])
            is_sum = np.abs(total - now)[:2].max() <= _ROUNDED * now[2]
            self.summed[number] += bool(is_sum and before[first.rank].weights[number][2])

    def found(self) -> tuple[Said, Said] | None:
        """What the script does with the weights after each step, and the effect."""
        if self.last is None or self.count < _SEVERAL:
            return None
        ranks = self.last.ranks
        if lost := [rank for rank, count in self.of.items() if count == self.count]:
            return said("between.of-one", rank=lost[0], ranks=ranks), said("between.lost", steps=self.count)
        if summed := [number for number, count in self.summed.items() if count == self.count]:
            names = self.last.here[0].named(summed)
            return said("between.summed", ranks=ranks, names=names), said("between.times", ranks=ranks)
        return None


class Between(Chapter):
    """Compares the weights after a step with those before the next one, in the first steps of scripts without a
    wrapper."""

    def __init__(self, findings: Findings) -> None:
        super().__init__(findings)
        self._mixed: dict[int, _Mixed] = defaultdict(_Mixed)

    def judge(self, together: Together) -> None:
        if len(together.here) == together.ranks > 1:
            self._mixed[together.here[0].optimizer].take(together)

    def finish(self, end: End) -> None:
        for mixed in self._mixed.values():
            if mixed.last is not None and (found := mixed.found()) is not None:
                self._add(*found, mixed.last.here, mixed.count)

    def _add(self, says: Said, effect: Said, here: Sequence[Window], count: int) -> None:
        ranks = tuple(window.rank for window in here)
        finding = Finding("watch/kept", says, 0, ranks, here[0].site, effect, here[0].optimizer)
        self._findings.add(finding, count=count)


def _is_own(together: Together, window: Window) -> bool:
    """Whether its step uses this rank's gradients only."""
    if window.step is None:
        return False
    case = Case(together, window, [*window.used], [])
    return not case.overflows and case.is_known(case.own) and not case.is_known(case.all)


def _is_chosen(window: Window) -> bool:
    """Whether the ranks may have exchanged more than the weights since the last step, such as losses that choose the
    best rank."""
    first = window.backwards[min(window.backwards)] if window.backwards else None
    return first is None or not 0 < first.exchanged <= sum(window.sizes[number] for number in window.weights)


def _after(window: Window) -> dict[int, Sketch]:
    """The weights after a step, as far as they are known."""
    step = window.step
    if step is None or not len(step.after):
        return {}
    return dict(zip(step.weights, np.reshape(step.after, (-1, WIDTH)), strict=True))


def _bytes(of: Mapping[int, object], number: int) -> bytes:
    """The sketch as bytes, so two NaN are equal; empty if it is not known."""
    return np.asarray(of[number], dtype=np.float64).tobytes() if number in of else b""
