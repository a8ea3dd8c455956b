"""Is each loss divided by the true length of its window?"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field
from itertools import pairwise
from math import isclose, prod

from conformance.watch import records
from conformance.watch.judging.case import Together
from conformance.watch.judging.findings import Finding, Findings, said
from conformance.watch.judging.kinds import may_be_one
from conformance.watch.judging.means import Means
from conformance.watch.judging.multiplied import divisors_of, factor_of
from conformance.watch.judging.properties import Property
from conformance.watch.judging.steady import Steady
from conformance.watch.judging.totals import Totals
from conformance.watch.judging.weights import are_alike, are_batches, is_mean, kappa_of, near
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


class Losses:
    """Judges what multiplies the losses of steps whose gradients are conserved."""

    def __init__(self, findings: Findings, steady: Steady) -> None:
        self._findings, self._steady = findings, steady
        self._of: dict[tuple[int, int], _Optimizer] = {}
        self._means, self._totals = Means(findings), Totals(findings, steady)

    def judge(self, together: Together) -> None:
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

    def finish(self) -> None:
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
