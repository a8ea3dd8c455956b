"""Is a mean over micro-batches, each of which is a mean over its own targets, the mean over all?"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from conformance.watch import records
from conformance.watch.judging.findings import Finding, Findings, Said, said
from conformance.watch.judging.kinds import kinds, may_be_one
from conformance.watch.judging.pool import Pool
from conformance.watch.judging.weights import are_alike, are_batches, of_one_target, passes_of, targets_of
from conformance.watch.judging.windows import Window

_LITTLE = 1.1
"""By what a target may weigh more than another one, as where a few pixels of some images have no label."""
_RARELY = 0.5
"""Of all steps: those in which an epoch ends."""


@dataclass
class _Found:
    """The first step of a kind, with what it was fed, and how many there are."""

    first: Finding
    says: Said
    fed: list[set[tuple[int, ...]]]
    times: int = 0


class Means:
    """Judges steps in which micro-batches of different sizes count alike."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._steps: Counter[int] = Counter()
        self._found: dict[tuple[int, str, bool], _Found] = {}
        self._pools: dict[int, Pool] = defaultdict(Pool)

    def judge(self, windows: list[Window]) -> None:
        optimizer, passes = windows[0].optimizer, passes_of(windows)
        self._steps[optimizer] += 1
        fed = [rows for window in windows for rows in window.fed]
        are_padded = any(one.ignored for one in passes) and not any(one.batches for one in passes)
        if are_padded:
            for rows in fed:
                self._pools[optimizer].add(rows)
        if not all(map(_counts_alike, windows)) or not may_be_one(windows):
            return
        sizes = [[targets_of(one) for one in window.backwards.values()] for window in windows]
        are_of_loader = all(are_batches(window.backwards.values()) for window in windows)
        # Samples, tasks and groups of a batch may be intended to count as one each.
        are_samples = bool(fed) and all(len(rows) == 1 for rows in fed)
        if max(max(of) / min(of) for of in sizes) <= _LITTLE or are_samples:
            return
        if all(map(_is_cut, sizes)):
            shape = "cut"
        elif len(kinds(windows)) > 1 or not (are_of_loader or (are_padded and _have_one_size(passes))):
            return
        else:
            shape = "smaller" if all(map(_has_a_smaller_one, sizes)) else "any"
        least, most = min(map(min, sizes)), max(map(max, sizes))
        says = said("micro-batches.means", least=least, most=most, times=most / least)
        found = _finding(windows, says, most / least)
        self._findings.show(found.key, windows)
        first = _Found(found, says, [window.fed for window in windows])
        self._found.setdefault((optimizer, shape, are_of_loader), first).times += 1

    def finish(self) -> None:
        for (optimizer, shape, are_of_loader), of in self._found.items():
            # Chunks of a batch are no ends of epochs.
            is_often = of.times > _RARELY * self._steps[optimizer]
            are_of_one = are_of_loader or all(map(self._pools[optimizer].are_linked, of.fed))
            if shape == "cut" and is_often and not are_of_loader:
                self._findings.leave_open(of.says, of.times, of.first.step, of.first.site)
            elif are_of_one and (shape == "any" or (shape == "smaller" and is_often)):
                self._findings.add(of.first, count=of.times)


def _counts_alike(window: Window) -> bool:
    """Whether all passes weigh the same, reach the same parameters, as losses of several heads do not, and are over
    targets. An episode or a graph may count as one, however long it is."""
    passes = window.backwards.values()
    weights = [of_one_target(one) * targets_of(one) for one in passes if not one.of_any]
    reached = [{one.backward for one in of} & window.backwards.keys() for of in window.new.values()]
    reach_the_same = all(of in (set(), {*window.backwards}) for of in reached)
    return len(weights) == len(passes) > 0 and min(weights) > 0 and are_alike(weights) and reach_the_same


def _have_one_size(passes: list[records.Backward]) -> bool:
    """Whether they are padded to one size."""
    return len({targets_of(one) + one.ignored for one in passes}) == 1


def _is_cut(sizes: Sequence[int]) -> bool:
    """Whether all are alike but the last, which is smaller, as where a batch is cut into parts, or an epoch ends."""
    *before, last = sizes
    return len({*before}) <= 1 and last <= max(before, default=last)


def _has_a_smaller_one(sizes: Sequence[int]) -> bool:
    """Whether all are alike but one, which is smaller, as wherever an epoch ends within a window."""
    return len({*sizes}) == 1 or (len({*sizes}) == 2 and sizes.count(min(sizes)) == 1)


def _finding(windows: list[Window], says: Said, times: float) -> Finding:
    first, ranks = windows[0], tuple(window.rank for window in windows)
    site = next(iter(first.backwards.values())).site
    effect = said("micro-batches.target-weighs", times=times)
    return Finding("watch/mean-of-all", says, first.index, ranks, site, effect, first.optimizer)
