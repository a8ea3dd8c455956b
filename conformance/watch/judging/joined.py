"""What ranks that still have data make of those that have run out of it, in torch's `Join`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from math import isclose

import numpy as np

from conformance.watch.judging.case import Case, Together
from conformance.watch.judging.findings import Finding, Findings
from conformance.watch.judging.system import factors_of, system_of
from conformance.watch.judging.weights import total_of
from conformance.watch.judging.windows import Window

_OFTEN = 3
_NEAR = 1e-3

_AGAIN = "once ranks have run out of data, what was accumulated so far is averaged over the ranks again after each "
_AGAIN += "micro-batch, and so divided by their number"
_TWICE = "once ranks have run out of data, the mean over the targets of the others counts more than once"
_OLD = "a rank that has run out of data steps its part of the parameters on gradients that it has used before"


@dataclass
class _Steps:
    """Of an optimizer. all: how many steps of all ranks are right. fewer: how many of fewer ranks were looked at.
    wrong: how many of these show the mistake. first: of them."""

    all: int = 0
    fewer: int = 0
    wrong: int = 0
    first: Finding | None = None

    @property
    def is_proof(self) -> bool:
        return self.all >= _OFTEN and self.wrong == self.fewer >= _OFTEN


class Joined:
    """Of the processes that train together.

    What a script does in the same lines is right in each step of all ranks, and wrong by just the number of ranks, or
    of those that are left, in each step that some do not take any more. It cannot be meant: whatever weights a script
    gives micro-batches and losses, it gives them in both.
    """

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._again: dict[int, _Steps] = defaultdict(_Steps)
        self._twice: dict[int, _Steps] = defaultdict(_Steps)
        self._old: dict[int, _Steps] = defaultdict(_Steps)

    def judge(self, together: Together) -> None:
        """A step of the ranks that still have data. One that has none may also take it, on what it has."""
        out = [window for window in together.here if not window.new]
        left = [window for window in together.here if window.new and window.step is not None]
        if not left or not together.is_joined:
            return
        optimizer, is_of_all = left[0].optimizer, len(left) == together.ranks
        self._count(self._old[optimizer], is_of_all, [*_on_old(together, out)])
        if any(len(window.backwards) > 1 for window in left):
            again = [] if is_of_all else [*_again(together, left)]
            self._count(self._again[optimizer], is_of_all and _is_right(together), again)
        total = total_of(together, left)
        if total is not None:
            is_twice = not is_of_all and isclose(total, together.ranks / len(left), rel_tol=_NEAR)
            effect = f"the update is {total:.3g} times what it should be"
            twice = [_finding(left[0], "watch/means-averaged", _TWICE, effect)] if is_twice else []
            self._count(self._twice[optimizer], is_of_all and isclose(total, 1, rel_tol=_NEAR), twice)

    def _count(self, of: _Steps, is_right: bool, found: list[Finding]) -> None:
        of.all += is_right
        of.fewer += not is_right
        of.wrong += bool(found)
        of.first = of.first or next(iter(found), None)

    def finish(self) -> None:
        for kind in (self._again, self._twice, self._old):
            for of in kind.values():
                if of.is_proof and of.first is not None:
                    self._findings.add(of.first, count=of.wrong)


def _is_right(together: Together) -> bool:
    return {kappa for of_rank in together.kappas.values() for kappa in of_rank} in ({1.0}, {float(together.ranks)})


def _again(together: Together, left: list[Window]) -> Iterator[Finding]:
    """Whether each earlier micro-batch of the ranks that are left counts less than the next one: as all ranks have the
    same average by then, by what share of it is left of their sum."""
    ratio = together.ranks / len(left)
    for window in left:
        sets = {window.clips_of(number) for number in window.used}
        if len(sets) != 1 or any(not np.isfinite(sketch).all() for sketch in window.used.values()):
            continue
        case = Case(together, window, [*window.used], [*sets.pop()])
        is_finite = all(one.is_finite for number in case.parameters for one in case.all(number))
        is_clear = is_finite and case.is_of_one_sample and not case.is_limited
        system = system_of(case) if is_clear else None
        found = factors_of(system) if system is not None and system.is_ample else ""
        if isinstance(found, str) or any(is_old for _, _, is_old in found):
            continue
        by_rank: dict[int, list[float]] = defaultdict(list)
        for (rank, _, _), factor in sorted(found.items()):
            by_rank[rank].append(factor)
        pairs = [pair for factors in by_rank.values() for pair in pairwise(factors)]
        if pairs and all(isclose(after, before * ratio, rel_tol=_NEAR * 10) for before, after in pairs):
            effect = f"a backward pass counts {ratio:g} times as much as the one before"
            yield _finding(window, "watch/every-backward", _AGAIN, effect)


def _on_old(together: Together, out: list[Window]) -> Iterator[Finding]:
    """Of parameters that are split over the ranks, none but this one steps its part, and no other rank makes up for it.
    With as many parameters as ranks, or more, each rank has a part."""
    for window in out:
        step, used = window.step, [number for number, sketch in window.used.items() if sketch[2]]
        if step is None or step.type != "ZeroRedundancyOptimizer" or len(step.parameters) < together.ranks or not used:
            continue
        if all(number in window.again for number in used) and _are_computed(together, used):
            effect = "a part of the parameters follows gradients of weights that no longer are"
            yield _finding(window, "watch/fresh", _OLD, effect)


def _are_computed(together: Together, numbers: list[int]) -> bool:
    return all(any(window.new.get(number) for window in together.here) for number in numbers)


def _finding(window: Window, law: str, says: str, effect: str) -> Finding:
    return Finding(law, says, window.index, (window.rank,), window.site, effect, window.optimizer)
