"""Detects steps that are no mean over all targets, because means over different counts have equal weights."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from conformance.watch import records
from conformance.watch.judging.findings import Finding, Findings, said
from conformance.watch.judging.properties import Property
from conformance.watch.judging.targets import (
    are_alike,
    are_batches,
    is_of_all_ranks,
    kinds,
    may_be_one,
    of_one_target,
    passes_of,
    reach_the_same,
    targets_of,
)
from conformance.watch.judging.windows import Window

_LITTLE = 1.1
"""Tolerated ratio of target weights: for example, a few pixels of some images have no label."""
_EPOCH = 3
"""Fewest steps of an epoch: more frequent differences are not those of the last batch of an epoch."""
_MOST = 8192
"""Limit of rows that are kept."""


@dataclass
class _Found:
    """The first step of a kind, the rows of its inputs, and the number of such steps."""

    first: Finding
    fed: list[set[tuple[int, ...]]]
    times: int = 0


@dataclass
class _Apart:
    """Steps whose targets have different weights. times: the first is `step`. ends: those that may be ends of epochs.
    most: the largest ratio of two weights."""

    step: int
    site: records.Site
    times: int = 0
    ends: int = 0
    most: float = 1.0


class Means:
    """Judges the weight of each target in a step."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._steps: Counter[int] = Counter()
        self._apart: dict[int, _Apart] = {}
        self._found: dict[tuple[int, str, bool], _Found] = {}
        self._linked: dict[int, list[set[int]]] = defaultdict(list)

    def judge(self, windows: list[Window], *, has_one_factor: bool) -> None:
        """has_one_factor: whether the gradients of all ranks and passes have one factor in the step."""
        optimizer, passes = windows[0].optimizer, passes_of(windows)
        self._steps[optimizer] += 1
        fed = [rows for window in windows for rows in window.fed]
        are_padded = any(one.ignored for one in passes) and not any(one.batches for one in passes)
        for rows in fed if are_padded else ():
            self._linked[optimizer] = _linked(self._linked[optimizer], {*rows})
        if not all(window.backwards for window in windows):
            return
        sizes = [[targets_of(one) for one in window.passes] for window in windows]
        shape = _shape(sizes)
        times = _times(windows) if has_one_factor else 0.0
        if times > _LITTLE:
            apart = self._apart.setdefault(optimizer, _Apart(windows[0].index, passes[0].site))
            apart.times, apart.most = apart.times + 1, max(apart.most, times)
            apart.ends += shape != "any"
        elif times:
            self._findings.seen[Property.DENOMINATOR] += 1
        if not all(map(_counts_alike, windows)) or not may_be_one(windows):
            return
        are_of_loader = all(are_batches(window.passes) for window in windows)
        have_one_size = are_padded and len({targets_of(one) + one.ignored for one in passes}) == 1
        is_of_one = len(kinds(windows)) == 1 and (are_of_loader or have_one_size)
        # Samples, tasks and groups of a batch may intentionally count as one each.
        are_samples = bool(fed) and all(len(rows) == 1 for rows in fed)
        # A smaller last part is a chunk of a batch, or the end of an epoch.
        if max(max(of) / min(of) for of in sizes) > _LITTLE and not are_samples and shape != "cut" and is_of_one:
            found = _Found(_finding(windows, sizes), [window.fed for window in windows])
            self._findings.show(found.first.key, windows)
            self._found.setdefault((optimizer, shape, are_of_loader), found).times += 1

    def finish(self) -> None:
        wrong = set[int]()
        for (optimizer, shape, are_of_loader), of in self._found.items():
            is_often = 2 * of.times > self._steps[optimizer]
            is_of_one = are_of_loader or all(self._are_linked(optimizer, *of.fed))
            if (is_often or shape == "any") and is_of_one:
                self._findings.add(of.first, count=of.times)
                wrong.add(optimizer)
        for optimizer, apart in self._apart.items():
            are_ends = apart.times == apart.ends and _EPOCH * apart.times <= self._steps[optimizer]
            if optimizer not in wrong and not are_ends:
                says = said("denominator.apart", times=apart.most)
                self._findings.leave_open(says, apart.times, apart.step, apart.site)

    def _are_linked(self, optimizer: int, *windows: set[tuple[int, ...]]) -> list[bool]:
        """Whether the micro-batches of each window are all different and from one data set."""
        firsts = [{rows[0] for rows in fed if rows} for fed in windows]
        groups = self._linked[optimizer]
        return [
            len(first) == len(fed) > 1 and any(first <= group for group in groups)
            for first, fed in zip(firsts, windows, strict=True)
        ]


def _linked(groups: list[set[int]], rows: set[int]) -> list[set[int]]:
    """Groups of rows that occur together in micro-batches. Shuffling soon links all rows of one data set, but never
    those of different tasks or data sets."""
    joined = set[int]().union(*(group for group in groups if not group.isdisjoint(rows)))
    if sum(map(len, groups)) < _MOST:
        joined |= rows
    others = [group for group in groups if group.isdisjoint(rows)]
    return [*others, joined] if joined else others


def _counts_alike(window: Window) -> bool:
    """Whether all passes are over targets, have equal weights, and reach the same parameters, unlike losses of several
    heads. Other losses do not count: an episode or a graph may have weight 1 whatever its length."""
    passes = window.passes
    weights = [of_one_target(one) * targets_of(one) for one in passes if not one.of_any]
    return len(weights) == len(passes) > 0 and min(weights) > 0 and are_alike(weights) and reach_the_same(window)


def _times(windows: Sequence[Window]) -> float:
    """How much more a target of one loss weighs than one of another; 0 if that is not known. Losses that count equally,
    each micro-batch or each rank, are means of one loss; others may be of several."""
    by_rank = [[one for one in window.passes if one.factor] for window in windows]
    passes = [one for of_rank in by_rank for one in of_rank]
    are_known = all(targets_of(one) and not one.of_any and not one.is_hidden for one in passes)
    are_of_one = len(kinds(windows)) == 1 and len({one.loader for one in passes} - {None}) <= 1
    if not are_known or not are_of_one or not all(by_rank) or is_of_all_ranks(windows):
        return 0.0
    weights = [[abs(of_one_target(one)) for one in of_rank] for of_rank in by_rank]
    totals = [[abs(of_one_target(one)) * targets_of(one) for one in of_rank] for of_rank in by_rank]
    are_means = are_alike([*chain(*totals)])
    are_means_of_ranks = all(map(are_alike, weights)) and are_alike([*map(sum, totals)])
    are_known = are_means or are_means_of_ranks or are_alike([*chain(*weights)])
    return max(chain(*weights)) / min(chain(*weights)) if are_known else 0.0


def _shape(by_rank: Sequence[Sequence[int]]) -> str:
    """How the sizes of micro-batches differ. "cut": only the last is smaller, as with chunks of a batch, or at the end
    of an epoch. "smaller": only one is, as when an epoch ends within a window. "any": otherwise."""
    if all(len({*before}) <= 1 and last <= max(before, default=last) for *before, last in by_rank):
        return "cut"
    is_smaller = [len({*sizes}) <= 2 and sizes.count(min(sizes)) in (1, len(sizes)) for sizes in by_rank]
    return "smaller" if all(is_smaller) else "any"


def _finding(windows: list[Window], sizes: Sequence[Sequence[int]]) -> Finding:
    first, ranks = windows[0], tuple(window.rank for window in windows)
    least, most = min(map(min, sizes)), max(map(max, sizes))
    site = first.passes[0].site
    says = said("micro-batches.means", least=least, most=most)
    effect = said("micro-batches.target-weighs", times=most / least)
    return Finding("watch/mean-of-all", says, first.index, ranks, site, effect, first.optimizer)
