"""Is each loss divided by the true length of its window?"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from math import isclose, prod

from conformance.watch import records
from conformance.watch.judging.case import Together
from conformance.watch.judging.findings import Finding, Findings
from conformance.watch.judging.kinds import kinds, may_be_one
from conformance.watch.judging.means import Means
from conformance.watch.judging.multiplied import divisors_of, factor_of, weight_of
from conformance.watch.judging.steady import Steady
from conformance.watch.judging.totals import Totals
from conformance.watch.judging.windows import Window

_MOST_KEPT = 100

TIMES = "means over each rank's own targets are multiplied by the number of ranks, so the update is that of their sum"

PARTLY = "some losses of a window are divided by how many micro-batches it has, and others, of the same loader, are not"


@dataclass
class _Optimizer:
    """right: windows whose losses were divided by their number. others: those that were not, each with the number
    that they were divided by. summed: windows of several means that nothing divided. surplus: how many more batches
    a loader gave than went backward. divided: by a whole number that means were divided by, and that is not that of the
    window, how many backward passes windows had. are_batches: loaders gave as many batches as went backward. last: the
    last window. by_last: what losses are divided by last is the number of passes, and other factors come before.
    unseen: windows of batches of one loader whose losses nothing that is seen divides."""

    right: int = 0
    windows: int = 0
    others: deque[tuple[Window, int]] = field(default_factory=lambda: deque(maxlen=_MOST_KEPT))
    summed: int = 0
    surplus: int = 0
    divided: dict[int, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))
    are_batches: bool = False
    last: int = 0
    by_last: bool = False
    unseen: int = 0

    @property
    def are_ends(self) -> bool:
        """Whether short windows are those at the ends of epochs: each pass has a batch of a loader, or they are all
        alike and equally far apart; or one that ends with the first pass of all. What a batch lacks now and then, as
        labels of one of several tasks, it lacks by chance, and counts as zero on purpose."""
        short = [(window.index, len(window.backwards)) for window, nominal in self.others]
        places = [-1 if len(short) < _MOST_KEPT else short[0][0], *(index for index, _ in short)]
        gaps = {after - before for before, after in pairwise(places) if after > before}
        is_over = self.last - short[-1][0] <= min(gaps)
        are_alike = len(gaps) == len({length for _, length in short}) == 1
        return self.are_batches or (are_alike and is_over) or short == [(0, 1)]

    @property
    def said_of_short(self) -> str | None:
        """Of windows of fewer passes than all losses are divided by, which are as many as those of the longest."""
        lengths = Counter(len(window.backwards) for window, _ in self.others)
        numbers = {nominal for _, nominal in self.others}
        if len(numbers) != 1 or self.windows > self.right + len(self.others) or max(lengths) >= min(numbers):
            return None
        return f"each loss is divided by {min(numbers)}, and its window has {_passes(lengths)}"


def _is_divided_by(number: int, backward: records.Backward) -> bool:
    """Whether its loss is a mean of cross entropy or its kin, over this number. Half of another mean is common."""
    return bool(backward.targets) and not backward.of_any and isclose(prod(divisors_of(backward)), number)


class Losses:
    """Of the processes that train together."""

    def __init__(self, findings: Findings, steady: Steady) -> None:
        self._findings = findings
        self._of: dict[tuple[int, int], _Optimizer] = defaultdict(_Optimizer)
        self._means, self._totals = Means(findings), Totals(findings, steady)
        self._steady = steady

    def judge(self, together: Together) -> None:
        """Only windows whose gradients are conserved with the right factor, so that nothing makes up for it later."""
        for window in together.here:
            if window.step is not None and not window.step.closure and window.backwards:
                self._length(window, is_divided={*together.kappas.get(window.rank, ())} != {1.0})
        self._means.judge(together.here)
        if together.ranks > 1 and _are_bare_sums(together):
            self._findings.note(
                f"each rank's loss is the sum over its own targets, and the gradients of {together.ranks} ranks are "
                f"averaged: the update is 1/{together.ranks} of that of the sum over all"
            )
        if together.ranks > 1 and _are_times_ranks(together):
            self._findings.undecided(TIMES)
        self._totals.judge(together)

    def _length(self, window: Window, *, is_divided: bool) -> None:
        """is_divided: whether something comes after the losses, as a division of the gradients."""
        of = self._of[window.optimizer, window.rank]
        of.windows += 1
        of.last = window.index
        passes = list(window.backwards.values())
        # Batches may come long before. Of several loaders, one may be that of an evaluation.
        of.surplus += sum(one.batches - 1 for one in passes if one.loader is not None or not one.batches)
        # A loss that counts nothing is that of a batch that is made up.
        factors = [factor for one in passes if (factor := factor_of(one))] or [0.0]
        divisor = 1 / factors[0] if factors[0] else 0.0
        same = all(abs(factor - factors[0]) <= 1e-6 * abs(factors[0]) for factor in factors)
        nominal = round(divisor) if same and divisor > 1.5 and abs(divisor - round(divisor)) < 1e-4 else None
        divisors = divisors_of(passes[0])
        outer = divisors[0] if divisors else 0.0
        # Two divisions of a mean are of the same thing.
        is_part = len(divisors) == 1 or not all(one.targets and not one.of_any for one in passes)
        is_last = is_part and (of.by_last or outer == len(passes)) and outer == round(outer) > 1
        if same and is_last and nominal != len(passes):
            # What comes below is a part of the loss.
            of.by_last, nominal = True, round(outer)
        if not same and not is_divided and _are_divided_partly(passes, factors):
            self._findings.undecided(PARTLY)
        # Losses of one batch are those of several tasks.
        is_sum = not is_divided and len(passes) > 1 and may_be_one([window]) and len(window.fed) != 1
        if nominal == len(passes):
            of.right += 1
            of.are_batches |= sum(one.batches for one in passes) >= len(passes)
        elif nominal is not None and nominal != len(passes) + window.lost:
            of.others.append((window, nominal))
            if not is_divided and all(_is_divided_by(nominal, one) for one in passes):
                of.divided[nominal][len(passes)] += 1
            # Half of each loss is no share of them.
            of.unseen += is_sum and all(prod(one.divisors) == 1 for one in passes) and _are_added_up(passes)
        elif is_sum:
            of.summed += (are_means := all(one.targets and not one.factors for one in passes))
            of.unseen += not are_means and _are_added_up(passes)

    def finish(self) -> None:
        self._means.finish()
        are_cleared = any(law == "watch/used" for law, _ in self._findings.causes)
        for (optimizer, rank), of in self._of.items():
            if of.right >= 2 and of.right >= of.windows / 2:
                missing = sum(max(0, nominal - len(one.backwards) - one.lost) for one, nominal in of.others)
                # Of the first passes that are cleared it is not known whether something else has used them.
                for window, nominal in [] if are_cleared else of.others:
                    passes = len(window.backwards)
                    if passes > nominal:
                        self._findings.undecided(
                            f"{_divided(passes, nominal)}: what is left of an epoch may be added to the next window on "
                            "purpose"
                        )
                        continue
                    if of.surplus >= missing > 0 or not of.are_ends:
                        self._findings.undecided(
                            f"{_divided(passes, nominal)}: the script leaves some out, which may be meant to count as "
                            "zero"
                        )
                        continue
                    self._findings.add(
                        Finding(
                            "watch/window-length",
                            _divided(passes, nominal),
                            window.index,
                            (rank,),
                            next(iter(window.backwards.values())).site,
                            f"the update is {passes / nominal:.3g} of what it should be",
                            optimizer=optimizer,
                        ),
                        [window],
                    )
            elif of.right and (says := of.said_of_short) is not None:
                self._findings.undecided(says, len(of.others))
            is_twice = self._steady.suspects("watch/divided-once")
            for nominal, lengths in of.divided.items():
                # Half of a loss may be meant, as may be a window that was left out by hand. A mean needs neither.
                if lengths.total() > of.windows / 2 and not is_twice:
                    self._findings.undecided(
                        f"each loss is divided by {nominal}, and its window has {_passes(lengths)}", lengths.total()
                    )
            if of.unseen > of.windows / 2:
                self._findings.undecided(
                    "losses of micro-batches are added up, and nothing that is seen divides them by how many there are"
                )
            if of.summed > of.windows / 2 and not self._steady.suspects("watch/means-averaged"):
                self._findings.undecided(
                    "means over micro-batches are summed up and divided by nothing, so the update is not that of a mean"
                )


def _passes(lengths: Iterable[int]) -> str:
    least, most = min(lengths), max(lengths)
    if least < most:
        return f"{least} to {most} backward passes"
    return f"{most} backward passes" if most > 1 else "one backward pass"


def _divided(passes: int, nominal: int) -> str:
    which = f"{passes} micro-batches were each" if passes > 1 else "one micro-batch was"
    return f"{which} divided by {nominal}"


def _are_bare_sums(together: Together) -> bool:
    """Whether losses are sums that nothing divides, and are averaged over the ranks."""
    passes = [one for window in together.here for one in window.backwards.values()]
    are_averaged = {kappa for of_rank in together.kappas.values() for kappa in of_rank} == {1.0}
    return are_averaged and bool(passes) and all(one.summed and isclose(factor_of(one), 1) for one in passes)


def _are_times_ranks(together: Together) -> bool:
    """Whether each rank's losses are a mean over its own targets times the number of ranks, and averaged over these."""
    passes = [one for window in together.here for one in window.backwards.values()]
    are_averaged = {kappa for of_rank in together.kappas.values() for kappa in of_rank} == {1.0}
    are_means = all(one.targets and not one.of_any for one in passes) and len(kinds(together.here)) == 1
    weights = [weight_of(window) for window in together.here]
    return are_averaged and are_means and all(weight and isclose(weight, together.ranks) for weight in weights)


def _are_divided_partly(passes: list[records.Backward], factors: list[float]) -> bool:
    """Whether each is of one batch of one loader, and some count as much more as there are. A loss of other data, such
    as those without labels, may be meant to."""
    are_batches = all(one.batches == 1 for one in passes) and len({one.loader for one in passes}) == 1
    if not are_batches or not all(factors):
        return False
    times = {factor / min(factors, key=abs) for factor in factors}
    return all(isclose(one, 1) or isclose(one, len(passes)) for one in times)


def _are_added_up(passes: list[records.Backward]) -> bool:
    """Whether each is of one batch of one loader, and nothing that is seen makes a mean of their losses, nor of a term
    of theirs: no factor is 1 over their number, and no divisor a multiple of it."""
    loaders = {one.loader for one in passes if one.batches}
    are_batches = sum(one.batches for one in passes) == len(passes) and len(loaders) == 1 and None not in loaders
    if not are_batches or any(one.draws or one.summed or one.is_hidden for one in passes):
        return False
    number = len(passes)
    factors = [factor for one in passes for factor in (*one.factors, factor_of(one))]
    divisors = [divisor for one in passes for divisor in (*one.divisors, *one.of_terms)]
    are_multiples = any(isclose(one / number, round(one / number)) for one in divisors if one > 1)
    return not are_multiples and not any(isclose(factor * number, 1, rel_tol=1e-4) for factor in factors)
