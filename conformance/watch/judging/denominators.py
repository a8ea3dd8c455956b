"""Denominators of losses: the true length of a window, and the mean over all targets of its micro-batches."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import isclose, prod

from conformance.watch import records
from conformance.watch.judging.case import Together
from conformance.watch.judging.chapter import Chapter, End
from conformance.watch.judging.findings import Finding, Findings, Said, said
from conformance.watch.judging.proof import Steady
from conformance.watch.judging.properties import Property
from conformance.watch.judging.targets import (
    are_alike,
    are_batches,
    divisors_of,
    factor_of,
    is_mean,
    kappa_of,
    kinds,
    may_be_one,
    near,
    of_one_target,
    passes_of,
    targets_of,
)
from conformance.watch.judging.totals import Totals
from conformance.watch.judging.windows import Window

_MOST_KEPT = 100


@dataclass
class _Optimizer:
    """Windows of an optimizer on a rank.

    right: how many windows are divided by their length, by length. off: by another number that they are divided by, how
    many have which length. kept: the last of these. means: as off, but only losses that are surely divided by this
    number as a whole. surplus: how many more batches loaders gave than went backward. added: lengths of windows whose
    losses nothing divides.
    """

    ranks: int
    windows: int = 0
    last: int = 0
    right: Counter[int] = field(default_factory=Counter)
    off: dict[int, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))
    kept: deque[tuple[Window, set[int]]] = field(default_factory=lambda: deque(maxlen=_MOST_KEPT))
    means: dict[int, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))
    surplus: int = 0
    have_batches: bool = False
    added: Counter[int] = field(default_factory=Counter)

    def take(self, window: Window, kappa: float | None) -> None:
        passes = [*window.backwards.values()]
        number = len(passes)
        self.windows += 1
        self.last = window.index
        # Batches may come long before. Of several loaders, one may be that of an evaluation.
        self.surplus += sum(one.batches - 1 for one in passes if one.loader is not None or not one.batches)
        numbers = _numbers(passes)
        if number in numbers:
            self.right[number] += 1
            self.have_batches |= sum(one.batches for one in passes) >= number
        elif numbers and number + window.lost not in numbers:
            self.kept.append((window, numbers))
            for nominal in numbers:
                self.off[nominal][number] += 1
                if kappa == 1 and all(is_mean(one) and near(prod(divisors_of(one)), nominal) for one in passes):
                    self.means[nominal][number] += 1
        if kappa == 1 and number > 1:
            # Losses of one batch are those of several tasks.
            self.added[number] += may_be_one([window]) and len(window.fed) != 1 and _are_added_up(passes)

    def short(self, usual: int) -> list[Window]:
        """Windows whose losses are divided by the usual length, and which surely lack the end of an epoch; none if
        there may be another reason. Each pass has a batch of a loader, or they are alike and equally far apart, or it
        is the first pass of all. A batch that lacks labels of one of several tasks lacks them by chance."""
        off = [window for window, numbers in self.kept if usual in numbers]
        missing = sum(max(0, usual - len(one.backwards) - one.lost) for one in off)
        if not off or self.surplus >= missing:
            return []
        lengths = {len(one.backwards) for one in off}
        places = [-1 if len(off) < _MOST_KEPT else off[0].index, *(one.index for one in off)]
        gaps = {after - before for before, after in pairwise(places) if after > before}
        are_ends = len(gaps) == len(lengths) == 1 and self.last - places[-1] <= min(gaps)
        is_first = places == [-1, 0] and lengths == {1}
        is_proof = self.have_batches or are_ends or is_first
        return [one for one in off if is_proof and len(one.backwards) < usual]


class Losses(Chapter):
    """Judges what multiplies the losses of steps whose gradients are conserved."""

    def __init__(self, findings: Findings, steady: Steady) -> None:
        super().__init__(findings)
        self._steady = steady
        self._of: dict[tuple[int, int], _Optimizer] = {}
        self._means, self._totals = Means(findings), Totals(findings, steady)

    def judge_right(self, together: Together) -> None:
        kappa = kappa_of(together)
        for window in together.here:
            passes = [*window.backwards.values()]
            if window.step is None or window.step.closure or not passes:
                continue
            self._of.setdefault((window.optimizer, window.rank), _Optimizer(together.ranks)).take(window, kappa)
            if kappa == 1 and _are_divided_partly(passes):
                uneven = said("micro-batches.uneven", times=len(passes))
                self._findings.leave_open(uneven, step=window.index, site=passes[0].site)
        self._means.judge(together.here)
        self._totals.judge(together)

    def finish(self, end: End) -> None:
        self._means.finish()
        self._totals.finish()
        # It is not known whether something else has used the first passes that are cleared.
        are_cleared = any(law == "watch/used" for law, _ in self._findings.causes)
        for (_, rank), of in self._of.items():
            self._findings.seen[Property.MICRO_BATCHES] += of.right.total()
            [(usual, right)] = of.right.most_common(1) or [(0, 0)]
            is_usual = right >= 2 and of.right.total() >= of.windows / 2
            short = of.short(usual) if is_usual and not are_cleared else []
            for window in short:
                self._findings.add(_too_short(window, usual, rank), [window])
            is_all = of.right.total() + of.off[usual].total() == of.windows and max(of.off[usual], default=0) < usual
            lengths = of.off[usual] if not short and (is_usual or is_all) and not are_cleared else None
            if lengths:
                self._leave_open(usual, lengths, of.ranks)
            self._find_others(of)

    def _find_others(self, of: _Optimizer) -> None:
        """What most windows of an optimizer show. Half of a loss may be intended, as may a window that is left out."""
        most = of.windows / 2
        for nominal, lengths in of.means.items():
            if lengths.total() > most and not self._steady.suspects("watch/divided-once"):
                self._leave_open(nominal, lengths, of.ranks)
        if of.added.total() > most and not self._steady.suspects("watch/means-averaged"):
            self._findings.leave_open(said("micro-batches.sum", passes=sorted(+of.added)), of.added.total())

    def _leave_open(self, nominal: int, lengths: Counter[int], ranks: int) -> None:
        says = said("micro-batches.divided", number=nominal, passes=sorted(lengths))
        if ranks > 1 and {*lengths} == {nominal / ranks}:
            says = said("ranks.divided-again", times=1 / ranks)
        self._findings.leave_open(says, lengths.total())


def _too_short(window: Window, usual: int, rank: int) -> Finding:
    passes = len(window.backwards)
    return Finding(
        "watch/window-length",
        said("micro-batches.short", passes=passes, number=usual),
        window.index,
        (rank,),
        next(iter(window.backwards.values())).site,
        said("times-the-mean", times=passes / usual),
        optimizer=window.optimizer,
    )


def _numbers(passes: list[records.Backward]) -> set[int]:
    """How many micro-batches a window has, to all of its losses: 1 over what multiplies them, or what divides them last
    if what comes below is a part of the loss. Losses of batches that are made up count nothing."""
    factors = [factor for one in passes if (factor := factor_of(one))]
    if not factors or min(factors) < 0 or not are_alike(factors):
        return set()
    divisors = divisors_of(passes[0])
    # Two divisions of a mean are of the same thing.
    is_part = len(divisors) == 1 or not all(map(is_mean, passes))
    found = [1 / factors[0], *(divisors[:1] if is_part else [])]
    return {round(one) for one in found if one > 1.5 and isclose(one, round(one), rel_tol=1e-5)}


def _are_divided_partly(passes: list[records.Backward]) -> bool:
    """Whether each is of one batch of one loader, and some count as much more as there are. A loss of other data, such
    as those without labels, may be meant to."""
    factors = [abs(factor_of(one)) for one in passes]
    if any(one.batches != 1 for one in passes) or len({one.loader for one in passes}) > 1 or not all(factors):
        return False
    times = [factor / min(factors) for factor in factors]
    return not are_alike(times) and all(near(one, 1) or near(one, len(passes)) for one in times)


def _are_added_up(passes: list[records.Backward]) -> bool:
    """Whether they are means that nothing multiplies, or micro-batches of one loader, and nothing that is seen makes a
    mean of them or of a term of theirs: no factor is 1 over their number, and no divisor a multiple of it."""
    if all(one.targets and not one.factors for one in passes):
        return True
    if not are_batches(passes) or any(one.summed or one.is_hidden for one in passes):
        return False
    number = len(passes)
    factors = [factor for one in passes for factor in (*one.factors, factor_of(one))]
    divisors = [divisor for one in passes for divisor in (*one.divisors, *one.of_terms)]
    are_multiples = any(isclose(one / number, round(one / number)) for one in divisors if one > 1)
    return not are_multiples and not any(near(factor * number, 1) for factor in factors)


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
        self._pools: dict[int, _Pool] = defaultdict(_Pool)

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
        found = _of_means(windows, says, most / least)
        self._findings.show(found.key, windows)
        first = _Found(found, says, [window.fed for window in windows])
        self._found.setdefault((optimizer, shape, are_of_loader), first).times += 1

    def finish(self) -> None:
        for (optimizer, shape, are_of_loader), of in self._found.items():
            # Chunks of a batch are no ends of epochs.
            are_of_one = are_of_loader or all(map(self._pools[optimizer].are_linked, of.fed))
            is_often = of.times > _RARELY * self._steps[optimizer]
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


def _of_means(windows: list[Window], says: Said, times: float) -> Finding:
    first, ranks = windows[0], tuple(window.rank for window in windows)
    site = next(iter(first.backwards.values())).site
    effect = said("micro-batches.target-weighs", times=times)
    return Finding("watch/mean-of-all", says, first.index, ranks, site, effect, first.optimizer)


_MOST = 8192
"""Rows."""


class _Pool:
    """Groups rows that are linked by micro-batches: rows of one task or data set never come with those of another, but
    in one set that is shuffled again and again, all are soon linked."""

    def __init__(self) -> None:
        self._groups: list[set[int]] = []

    def add(self, rows: Sequence[int]) -> None:
        """Take a micro-batch."""
        joined, others = set[int](), []
        for group in self._groups:
            if group.isdisjoint(rows):
                others.append(group)
            else:
                joined |= group
        if sum(map(len, self._groups)) < _MOST:
            joined |= {*rows}
        self._groups = [*others, joined] if joined else others

    def are_linked(self, micro_batches: Collection[Sequence[int]]) -> bool:
        """Whether all of these, none of which is like another one, are."""
        firsts = {rows[0] for rows in micro_batches if rows}
        are_several = len(firsts) == len(micro_batches) > 1
        return are_several and any(firsts <= group for group in self._groups)
