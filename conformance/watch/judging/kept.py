"""What becomes of the weights that ranks step by themselves, until the next step.

Ranks that step on gradients of their own may average their weights after it, or once in a while. Then the work of all
of them is in what they go on with.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import hypot

import numpy as np

from conformance.watch.judging.findings import Finding, Findings, Said, said
from conformance.watch.judging.forgotten import Forgotten
from conformance.watch.judging.pairing import Pairing
from conformance.watch.judging.windows import Window

_ALWAYS = 12
"""Steps. Ranks may also try a step each, and take over the best, which is another rank's in one step or the other."""

_OFTEN = 3
_NEAR = 1e-4
_FAR = 1e-2
_MANY_ELEMENTS = 8
"""Projections of fewer elements may be along one line."""


@dataclass
class _Steps:
    """taken: how often all ranks took over the weights of a rank, by the rank. summed: how often weights were summed
    up, and which. others: how often they became something else."""

    taken: Counter[int] = field(default_factory=Counter)
    summed: Counter[int] = field(default_factory=Counter)
    others: int = 0


@dataclass
class _Undone:
    """Of an optimizer of a rank: how often what its step did was gone before the next one, and how often it was not.
    shared: how often it used gradients that are not those of this rank."""

    undone: int = 0
    kept: int = 0
    shared: int = 0
    first: Window | None = None


class Kept:
    """Of the processes that train together."""

    def __init__(self, ranks: int, findings: Findings) -> None:
        self._ranks, self._findings = ranks, findings
        self._forgotten = Forgotten(ranks, findings)
        self._of: dict[int, _Steps] = defaultdict(_Steps)
        self._last: dict[int, tuple[list[Window], set[int]]] = {}
        self._alone: dict[tuple[int, int], _Undone] = defaultdict(_Undone)
        self._before: dict[tuple[int, int], Window] = {}

    def see(self, window: Window) -> None:
        """A step of a rank, whatever the others do."""
        at = window.rank, window.optimizer
        before = self._before.pop(at, None)
        if window.after:
            self._before[at] = window
        if before is None or not _follows(window, before) or before.after == before.weights:
            return
        of = self._alone[at]
        of.first = of.first or before
        of.shared += any(_is_of_others(before, number) for number in before.new)
        if window.weights == before.weights:
            of.undone += 1
        else:
            of.kept += 1

    def judge(self, here: Sequence[Window], alone: Iterable[int]) -> None:
        """A step of all ranks. alone: those that are known to use gradients of their own and no others."""
        optimizer = here[0].optimizer
        before = self._last.pop(optimizer, None)
        if len(here) == self._ranks and all(one.after for one in here):
            self._last[optimizer] = [*here], {*alone}
        if before is not None and len(here) == self._ranks and _follows(here[0], before[0][0]):
            self._compare(self._of[optimizer], *before, here)
            self._forgotten.see(before[0], here)

    def _compare(self, of: _Steps, before: Sequence[Window], alone: set[int], here: Sequence[Window]) -> None:
        now = here[0].weights
        if any(one.weights != now for one in here) or any(one.after.keys() != now.keys() for one in before):
            of.others += 1
            return
        apart = [number for number in now if len({one.after[number] for one in before}) > 1]
        if not apart:
            return
        whose = [one.rank for one in before if all(one.after[number] == now[number] for number in apart)]
        if len(whose) == 1 and whose[0] in alone:
            of.taken[whose[0]] += 1
            return
        of.others += 1
        of.summed.update(number for number in apart if _is_sum(now[number], [one.after[number] for one in before]))

    def finish(self, first: Window | None, pairing: Pairing, *, is_sampled: bool) -> None:
        """first: the first window of all. pairing: has seen the weights at the end. is_sampled: whether a sampler deals
        the data out: of shares that are dealt at random none makes one rank the best in each step, and none is there
        to be looked at."""
        if first is None:
            return
        every = tuple(range(self._ranks))
        for optimizer, of in self._of.items():
            [(rank, count)] = of.taken.most_common(1) or [(0, 0)]
            is_always = count == of.taken.total() and not of.others
            if count >= _ALWAYS and not (is_always and is_sampled):
                self._findings.leave_open(said("ranks.taken-over"), count)
            elif count >= _ALWAYS:
                says = said("take-over", rank=rank)
                effect = said("ranks-lost", lost=self._ranks - 1, ranks=self._ranks, times=count)
                self._findings.add(_finding(first, says, every, effect, optimizer))
            summed = sorted(number for number, times in of.summed.items() if times >= _OFTEN)
            if summed:
                says = said("weights-summed", parameters=len(summed), names=first.named(summed))
                effect = said("weights-times", ranks=self._ranks)
                self._findings.add(_finding(first, says, every, effect, optimizer))
        self._judge_undone(pairing)
        self._forgotten.finish()

    def _judge_undone(self, pairing: Pairing) -> None:
        """Who tries steps and takes them back, does so on all ranks, and not with all steps of one, for which the
        gradients of the others were asked for. Nor does he deal the parameters out, step each on one rank, and end with
        all of them as they were: the ranks get them from others than those that step them."""
        dealt = self._are_dealt_out()
        keep = {rank for (rank, _), of in self._alone.items() if of.kept}
        for (rank, optimizer), of in self._alone.items():
            is_known = of.first is not None and pairing.ends_with(rank, of.first.weights)
            is_wrong = bool(keep - {rank}) or (dealt and not keep and is_known)
            if of.undone >= _ALWAYS and of.shared == of.undone and not of.kept and is_wrong and of.first:
                effect = said("parameters-stay", parameters=len(of.first.weights))
                self._findings.add(_finding(of.first, said("step-undone", rank=rank), (rank,), effect, optimizer))

    def _are_dealt_out(self) -> bool:
        """Whether each parameter is stepped on one of several ranks."""
        names: dict[int, set[str]] = defaultdict(set)
        for (rank, _), of in self._alone.items():
            names[rank] |= set() if of.first is None else {of.first.names[number] for number in of.first.used}
        every = [name for of_rank in names.values() for name in of_rank]
        return len(names) > 1 and len(every) == len({*every})


def _follows(window: Window, before: Window) -> bool:
    """Whether it is the next step, of the same weights."""
    return window.index == before.index + 1 and window.weights.keys() == before.weights.keys()


def _is_of_others(window: Window, number: int) -> bool:
    """Whether a step used another gradient of a parameter than what this rank computed, whatever the factor."""
    used = window.used.get(number)
    if used is None or window.shards.get(number, 1) != 1 or window.sizes.get(number, 1) < _MANY_ELEMENTS:
        return False
    own = sum(one.sketch[0] for one in window.new[number])
    sizes = hypot(*used[:2]) * hypot(*own[:2])
    return abs(float(used[0] * own[1] - used[1] * own[0])) > _FAR * sizes > 0


def _is_sum(now: tuple[float, ...], after: Sequence[tuple[float, ...]]) -> bool:
    """Whether weights are the sum of those that the ranks had, which nothing has a use for. The projections of a sum
    are the sums of projections."""
    total = np.sum([one[:2] for one in after], axis=0)
    size = sum(one[2] for one in after)
    return bool(now[2] > _NEAR * size) and bool(np.all(np.abs(total - now[:2]) <= _NEAR * size))


def _finding(window: Window, says: Said, ranks: tuple[int, ...], effect: Said, optimizer: int) -> Finding:
    return Finding("watch/averaged", says, window.index, ranks, window.site, effect, optimizer)
