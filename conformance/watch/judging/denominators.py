"""Compares the divisors of losses with the number of passes, ranks and targets of a step."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from math import inf, isclose, prod
from typing import NamedTuple

from conformance.watch import records
from conformance.watch.judging.chapter import Chapter, End
from conformance.watch.judging.equations import Together
from conformance.watch.judging.findings import Finding, Findings, Said, said
from conformance.watch.judging.many_steps import Steady
from conformance.watch.judging.means import Means
from conformance.watch.judging.properties import Property
from conformance.watch.judging.targets import (
    are_alike,
    are_batches,
    divisors_of,
    is_mean,
    is_mean_of_all,
    is_of_all_ranks,
    kappa_of,
    kinds,
    may_be_one,
    near,
    of_one_target,
    passes_of,
    reach_the_same,
    targets_of,
    total_by_count,
    total_of,
    weight_of,
)
from conformance.watch.judging.windows import Window
from conformance.watch.records import ENTROPIES

_SEVERAL = 3
"""A loss may be halved twice for other reasons. Three different divisors are no constant of the script."""
_MOST_KEPT = 100


class Losses(Chapter):
    """Judges the factors of losses in steps that use all gradients correctly."""

    def __init__(self, findings: Findings, steady: Steady) -> None:
        super().__init__(findings)
        self._steady, self._ranks = steady, 1
        self._lengths: dict[tuple[int, int], _Lengths] = defaultdict(_Lengths)
        self._sums: dict[int, _Sums] = defaultdict(_Sums)
        self._times_ranks: dict[int, Counter[bool]] = defaultdict(Counter)
        self._at: dict[int, records.Site] = {}
        self._means = Means(findings)
        self._other_totals: set[int] = set()

    def judge_right(self, together: Together) -> None:
        kappa, self._ranks = kappa_of(together), together.ranks
        # Whether ranks are averaged or summed does not change the weight of micro-batches, unless it averages them.
        of_ranks = 1.0 if near(kappa, together.ranks) and not is_mean_of_all(together) else kappa
        for window in together.here:
            passes = window.passes
            if window.step is None or window.step.closure or not passes:
                continue
            self._at[window.optimizer] = passes[-1].site
            self._lengths[window.optimizer, window.rank].take(window, of_ranks, together.ranks)
            if of_ranks == 1 and _are_divided_partly(passes):
                uneven = said("micro-batches.uneven", times=len(passes))
                self._findings.leave_open(uneven, step=window.index, site=passes[0].site)
        self._means.judge(together.here, has_one_factor=kappa is not None)
        if kappa is not None and passes_of(together.here):
            self._count_sums(together)
            self._judge_joined(together)
            self._judge_numbers(together, kappa)

    def _count_sums(self, together: Together) -> None:
        # A made-up batch counts as 0.
        passes = [one for one in passes_of(together.here) if one.factor]
        are_sums = all(one.summed for one in passes) or _are_weighted_by_targets(passes)
        if not are_sums or len(kinds(together.here)) != 1 or together.is_joined:
            return
        if (total := total_of(together, together.here)) is not None:
            self._sums[together.here[0].optimizer].take(total, 1 / of_one_target(passes[0]))

    def _judge_joined(self, together: Together) -> None:
        """Judges the factor with which ranks make up for those without data: once the average, or the loss, has it, the
        total weight is 1. Not if all ranks have another total: then the script multiplies its loss."""
        if not together.is_joined:
            return
        here, total = together.here, total_of(together, together.here)
        optimizer, times = here[0].optimizer, together.ranks / len(here)
        if times == 1 and not near(total, 1):
            self._other_totals.add(optimizer)
        elif times > 1 and near(total, times) and optimizer not in self._other_totals:
            says = said("joined-twice", left=len(here), ranks=together.ranks)
            for window in here:
                self._steady.feed([(window.rank, _Wrong("watch/averaged-once", says, times).of(window), False)], here)

    def _judge_numbers(self, together: Together, kappa: float) -> None:
        here = together.here
        # An optimizer class of the script may divide the gradients.
        steps = [window.step for window in here if window.step is not None]
        if any(window.captured for window in here) or any(step.closure or step.is_own for step in steps):
            return
        found = [(window, one) for one in _of_ranks(together, kappa) for window in here]
        if not found and kappa == 1 and may_be_one(here):
            found = [(window, one) for window in here for one in _of_passes(window)]
        # Several losses may be summed, such as those of several lines, or of several tasks on ranks.
        is_one = len(kinds(here)) == 1 and _train_the_same(here) and all(map(reach_the_same, here))
        for window, one in found:
            if is_one or one.fact is None:
                self._steady.feed([(window.rank, one.of(window), False)], here)
            else:
                finding = one.of(window)
                self._findings.leave_open(one.fact, step=finding.step, site=finding.site)
        if kappa == 1 < together.ranks and is_one and all(map(is_mean, passes_of(here))) and not is_of_all_ranks(here):
            # Not if the script just adds as many losses as there are ranks.
            is_multiplied = not all(near(one.factor, 1) for one in passes_of(here))
            are_times = is_multiplied and near(total_of(together, here), together.ranks)
            self._times_ranks[here[0].optimizer][are_times] += 1

    def finish(self, end: End) -> None:
        self._means.finish()
        for optimizer, sums in self._sums.items():
            if sums.are_open:
                self._open(optimizer, _total(sums.least, sums.most), sums.off * self._ranks)
            elif sums.off and not sums.are_even:
                self._open(optimizer, said("denominator.constant", least=sums.least, most=sums.most), sums.off)
        for optimizer, counts in self._times_ranks.items():
            # A weight that varies is a part of the loss, and may equal the ranks by chance.
            if counts[True] and not counts[False]:
                says = said("micro-batches.times-ranks", ranks=self._ranks)
                self._open(optimizer, says, counts[True] * self._ranks)
        # The script may have used cleared passes in other ways.
        are_cleared = any(law == "watch/used" for law, _ in self._findings.causes)
        short: list[tuple[Finding, Window]] = []
        for (optimizer, _), of in self._lengths.items():
            self._findings.seen[Property.MICRO_BATCHES] += of.right.total()
            if not are_cleared:
                short += self._judge_lengths(optimizer, of)
            # Half of a loss may be intended, and so may a window that is left out.
            if 2 * of.added.total() > of.windows and not self._steady.suspects("watch/means-averaged"):
                self._open(optimizer, said("micro-batches.sum", passes=sorted(+of.added)), of.added.total())
            if of.twice:
                self._open(optimizer, said("micro-batches.divided-twice", number=_SEVERAL - 1), of.twice)
        # A step counts once for all ranks.
        for finding, window in sorted(short, key=lambda one: one[1].index):
            self._findings.add(finding, [window])

    def _open(self, optimizer: int, says: Said, count: int) -> None:
        self._findings.leave_open(says, count, site=self._at.get(optimizer))

    def _judge_lengths(self, optimizer: int, of: _Lengths) -> list[tuple[Finding, Window]]:
        [(usual, _)] = of.right.most_common(1) or [(0, 0)]
        short = []
        for window in of.uneven(usual):
            number = len(window.backwards)
            code = "micro-batches.short" if number < usual else "micro-batches.long"
            found = _Wrong("watch/window-length", said(code, passes=number, number=usual), number / usual)
            short.append((found.of(window), window))
        facts = {usual: of.off[usual]} if of.off[usual] and not short else {}
        if not self._steady.suspects("watch/divided-once"):
            facts |= {nominal: found for nominal, found in of.means.items() if 2 * found.total() > of.windows}
        for nominal, lengths in facts.items():
            [(usual, _)] = lengths.most_common(1)
            says = said("micro-batches.divided", number=nominal, passes=sorted(lengths), times=usual / nominal)
            if nominal == self._ranks and lengths.keys() == {1}:
                says = said("micro-batches.divided-by-ranks", ranks=nominal)
            self._open(optimizer, says, lengths.total())
        return short


class _Wrong(NamedTuple):
    """A wrong divisor. times: the update relative to that of the mean. fact: what it shows if there are several losses;
    None if it is wrong for these too."""

    law: str
    says: Said
    times: float
    fact: Said | None = None

    def of(self, window: Window) -> Finding:
        site = window.passes[0].site
        found = Finding.of(window, self.law, self.says, said("factor", factor=self.times), site)
        found.passes = frozenset((window.rank, number) for number in window.backwards)
        return found


def _of_ranks(together: Together, kappa: float) -> Iterator[_Wrong]:
    """Yields wrong divisors over the ranks; none if ranks can run out of data, as the rest may be averaged over."""
    here, ranks = together.here, together.ranks
    if ranks == 1 or together.is_joined or is_of_all_ranks(here):
        return
    are_means = near(kappa, ranks) and all(near(weight_of(window), 1) for window in here) and may_be_one(here)
    # Gradients that were not cleared may be as long as the new ones.
    if are_means and not any(one.is_any for window in here for of in window.old.values() for one in of):
        fact = said("ranks.sum", ranks=ranks)
        yield _Wrong("watch/means-averaged", said("ranks.means-added"), ranks, fact)
    if near(total_by_count(together, kappa), 1 / ranks):
        yield _Wrong("watch/averaged-once", said("ranks.divided-by-count"), 1 / ranks)
        return
    passes = passes_of(here)
    everything = sum(map(targets_of, passes))
    # With equal counts on the ranks, the divisor might be each rank's own count times a factor in the script. Half of a
    # loss may be intended, but not through a single number that equals the number of targets.
    are_bare = all(targets_of(one) and _numbers_besides_targets(one) <= 1 for one in passes)
    are_apart = len({sum(map(targets_of, window.passes)) for window in here}) > 1
    if kappa == 1 and are_apart and are_bare and all(near(of_one_target(one) * everything, 1) for one in passes):
        yield _Wrong("watch/averaged-once", said("divided-by-all-and-averaged", targets=everything), 1 / ranks)


def _of_passes(window: Window) -> Iterator[_Wrong]:
    """Yields wrong divisors over the micro-batches of a rank."""
    passes = window.passes
    number, batches = len(passes), passes[0].batches if passes else 0
    divisors = [divisors_of(one) if is_mean(one) else [] for one in passes]
    # No mean is divided by the number of micro-batches and, for another reason, by the same number again.
    if number >= _SEVERAL and all(of_one == 2 * [number] for of_one in divisors):
        fact = said("micro-batches.divided", number=number**2, passes=[number], times=1 / number)
        yield _Wrong("watch/divided-once", said("micro-batches.divided-twice", number=number), 1 / number, fact)
    # A script that concatenates batches, or leaves some out on purpose, has one mean and does not divide it.
    elif number == 1 and batches >= _SEVERAL and passes[0].loader is not None and divisors == [[batches]]:
        says = said("micro-batches.last-only", batches=batches)
        yield _Wrong("watch/every-backward", says, 1 / batches, says)
    elif number > 1 and are_batches(passes) and not _waits(window) and all(map(_is_bare, passes)):
        says = said("micro-batches.sum", passes=number)
        yield _Wrong("watch/means-averaged", says, number, says)


def _numbers_besides_targets(backward: records.Backward) -> int:
    """The number of factors and divisors of a loss, besides the loss scale and its number of targets."""
    left = [one for one in backward.factors if not near(one, 1)]
    for known in (backward.scale, backward.targets):
        own = next((one for one in left if known and near(one, known)), None)
        if own is not None:
            left.remove(own)
    return len(left)


def _are_weighted_by_targets(passes: Sequence[records.Backward]) -> bool:
    """Whether means over different numbers of targets have a factor that gives each target the same weight: then they
    are sums with a divisor."""
    counts, weights = {one.targets for one in passes}, [of_one_target(one) for one in passes]
    return len(counts) > 1 and all(map(is_mean, passes)) and min(weights) > 0 and are_alike(weights)


def _train_the_same(here: list[Window]) -> bool:
    """Whether the backward passes of all ranks reach the same parameters."""
    return len({frozenset(number for number, of in window.new.items() if of) for window in here}) == 1


def _waits(window: Window) -> bool:
    """Whether another optimizer steps between the passes: then they are no micro-batches, and this optimizer just steps
    more rarely, such as one for an embedding."""
    calls = [one for one in window.moments if isinstance(one, (records.Backward, records.Stepped))]
    return sum(issubclass(kind, records.Backward) for kind, _ in groupby(calls, type)) > 1


def _is_bare(backward: records.Backward) -> bool:
    """Whether the loss is a mean with no factor but the loss scale. Factors whose product is 1 count: ranks over
    micro-batches, for example, is intended."""
    factors = [factor for factor in backward.factors if not near(factor, 1)]
    return bool(backward.targets) and factors in ([], [backward.scale])


@dataclass
class _Sums:
    """Steps of an optimizer on sums over targets: all, and those whose total weight is not 1 (off). least, most: the
    range of these weights. divisors: a few divisors of these sums."""

    steps: int = 0
    off: int = 0
    least: float = inf
    most: float = 0.0
    divisors: set[float] = field(default_factory=set)

    def take(self, total: float, divisor: float) -> None:
        self.steps += 1
        if not near(total, 1):
            self.off += 1
            self.least, self.most = min(self.least, total), max(self.most, total)
            self.divisors |= {divisor} if len(self.divisors) < _SEVERAL else set()

    @property
    def are_even(self) -> bool:
        """Whether all steps have the same weight."""
        return self.off == self.steps and near(self.least, self.most)

    @property
    def are_open(self) -> bool:
        """Whether the weight varies: a script may divide by one constant."""
        return self.off > 0 and (2 * self.off < self.steps or len(self.divisors) == _SEVERAL)


def _total(least: float, most: float) -> Said:
    if near(least, most):
        return said("micro-batches.total", weight=least)
    return said("micro-batches.totals", least=least, most=most)


@dataclass
class _Lengths:
    """The lengths of an optimizer's windows on a rank (in passes), and the common divisor of each window's losses.

    right: windows divided by their length, by length. off: by another divisor, the number of windows by length. kept:
    the first of these. means: as off, but only losses that are surely divided by exactly this number. surplus: batches
    from loaders beyond the backward passes. added: windows whose losses are not divided, by length. twice: windows
    divided by their length twice, where one division may be a part of the loss. has_lines: a micro-batch has several
    losses, so a window's length is the number of passes of a line.
    """

    windows: int = 0
    last: int = 0
    right: Counter[int] = field(default_factory=Counter)
    off: dict[int, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))
    kept: list[tuple[Window, set[int]]] = field(default_factory=list)
    means: dict[int, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))
    surplus: int = 0
    have_batches: bool = False
    added: Counter[int] = field(default_factory=Counter)
    twice: int = 0
    has_lines: bool = False

    def take(self, window: Window, kappa: float | None, ranks: int) -> None:
        passes = window.passes
        number, numbers = len(passes), _numbers(passes)
        # A micro-batch may have several losses, each on its own line.
        of_lines = {*Counter(one.calls for one in passes).values()}
        is_shared = len(of_lines) == 1 and len(window.fed) <= min(of_lines) and not are_batches(passes)
        self.has_lines |= is_shared and number not in numbers and of_lines <= numbers
        number = min(of_lines) if is_shared and self.has_lines else number
        self.windows, self.last = self.windows + 1, window.index
        # Batches may come long before. One of several loaders may belong to an evaluation.
        self.surplus += sum(one.batches - 1 for one in passes if one.loader is not None or not one.batches)
        if number in numbers:
            self.right[number] += 1
            self.twice += kappa == 1 and number < _SEVERAL and all(divisors_of(one) == 2 * [number] for one in passes)
            self.have_batches |= sum(one.batches for one in passes) >= number
        elif numbers and number + window.lost not in numbers:
            if len(self.kept) < _MOST_KEPT:
                self.kept.append((window, numbers))
            for nominal in numbers:
                self.off[nominal][number] += 1
                are_means = all(is_mean(one) or (nominal == ranks and one.weighs) for one in passes)
                if kappa == 1 and are_means and all(near(prod(divisors_of(one)), nominal) for one in passes):
                    self.means[nominal][number] += 1
        # Several losses of one batch belong to several tasks.
        if kappa == 1 and number > 1 and len(window.fed) != 1 and may_be_one([window]) and _are_added_up(passes):
            self.added[number] += 1

    def uneven(self, usual: int) -> list[Window]:
        """Windows of another length that are divided by the usual one: shorter ones as an epoch ends, or longer ones
        that begin with what the epoch before has left.

        Empty if there may be another reason: in some batches, labels of one task may be missing by chance. Proof is
        that they have one length and equal distances, or of short windows that each pass has a batch of a loader, or
        that the only one is the first, with one pass."""
        off = [window for window, numbers in self.kept if usual in numbers]
        are_long = all(len(one.backwards) > usual for one in off)
        missing = sum(max(0, usual - len(one.backwards) - one.lost) for one in off)
        is_usual = self.right[usual] >= 2 and 2 * self.right.total() >= self.windows
        if not off or not is_usual or self.surplus >= max(missing, are_long):
            return []
        lengths, places = {len(one.backwards) for one in off}, [one.index for one in off]
        gaps = {after - before for before, after in pairwise([0 if are_long else -1, *places])}
        to_the_end = 0 if len(self.kept) == _MOST_KEPT else self.last - places[-1]
        are_ends = len(gaps) == len(lengths) == 1 and to_the_end <= min(gaps)
        if are_long:
            # A further loss in every few windows has its own line.
            are_of_one_line = all(len({one.calls for one in window.passes}) == 1 for window in off)
            return off if are_ends and are_of_one_line and len(off) > 1 and self.have_batches else []
        is_first = places == [0] and lengths == {1}
        is_proof = self.have_batches or are_ends or is_first
        return [one for one in off if is_proof and len(one.backwards) < usual]


def _numbers(passes: Sequence[records.Backward]) -> set[int]:
    """The number of micro-batches according to the losses: 1 over their common factor, or their last divisor if the
    others may be a part of the loss. Made-up batches, with a factor of 0, do not count."""
    factors = [factor for one in passes if (factor := one.factor)]
    if not factors or min(factors) < 0 or not are_alike(factors):
        return set()
    divisors = divisors_of(passes[0])
    # Both divisors of a cross entropy count micro-batches; other losses may be halved, such as a squared error.
    is_part = len(divisors) == 1 or not all(is_mean(one) and one.made_by in ENTROPIES for one in passes)
    found = [1 / factors[0], *(divisors[:1] if is_part else [])]
    return {round(one) for one in found if one > 1.5 and isclose(one, round(one), rel_tol=1e-5)}


def _are_divided_partly(passes: Collection[records.Backward]) -> bool:
    """Whether some of a loader's micro-batches are divided by the number of passes and others are not. Losses of other
    data, such as data without labels, may intentionally differ."""
    factors = [abs(one.factor) for one in passes]
    if any(one.batches != 1 for one in passes) or len({one.loader for one in passes}) > 1 or not all(factors):
        return False
    times = [factor / min(factors) for factor in factors]
    return not are_alike(times) and all(near(one, 1) or near(one, len(passes)) for one in times)


def _are_means_of_their_own(passes: Collection[records.Backward]) -> bool:
    """Whether each is a sum with its own, single divisor, such as the sum of its sample weights."""
    divisors = [divisor for one in passes for divisor in one.divisors if near(one.factor * divisor, 1)]
    return len(passes) == len(divisors) == len({*divisors}) and all(one.of_any for one in passes)


def _are_added_up(passes: Collection[records.Backward]) -> bool:
    """Whether they are means without factors, or micro-batches of one loader that nothing visible averages: no factor
    is 1 over their number, and no divisor of them or of their terms is a multiple of it."""
    if all(one.targets and not one.factors for one in passes) or _are_means_of_their_own(passes):
        return True
    if not are_batches(passes) or any((one.summed and not one.targets) or one.is_hidden for one in passes):
        return False
    number = len(passes)
    factors = [factor for one in passes for factor in (*one.factors, one.factor)]
    divisors = [divisor for one in passes for divisor in (*one.divisors, *one.of_terms)]
    are_multiples = any(isclose(one / number, round(one / number)) for one in divisors if one > 1)
    return not are_multiples and not any(near(factor * number, 1) for factor in factors)
