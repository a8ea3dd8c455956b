"""Do all targets of a step weigh 1 together, as in a mean?

Losses of cross entropy and similar ones show in their graphs how many targets they are a mean or a sum of. A total that
no script intends, such as a mean divided by the targets of all ranks and by the number of ranks, is an error; others
are facts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf

from conformance.watch import records
from conformance.watch.judging.case import Together
from conformance.watch.judging.findings import Finding, Findings, Said, said
from conformance.watch.judging.proof import Steady
from conformance.watch.judging.targets import (
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
    total_by_count,
    total_of,
    weight_of,
)
from conformance.watch.judging.windows import Window

_SEVERAL = 3
"""By two, a loss may be halved twice for other reasons. Divisors that change by themselves are three."""


@dataclass
class _Sums:
    """Steps of an optimizer on sums over targets: how many there are and how many have a total that is not 1, between
    which totals these are, and a few of the numbers that their sums are divided by."""

    steps: int = 0
    off: int = 0
    least: float = inf
    most: float = 0.0
    divisors: set[float] = field(default_factory=set)


class Totals:
    """Judges what the targets of steps weigh together, where gradients are conserved."""

    def __init__(self, findings: Findings, steady: Steady) -> None:
        self._findings, self._steady = findings, steady
        self._sums: dict[int, _Sums] = defaultdict(_Sums)

    def judge(self, together: Together) -> None:
        here, passes, kappa = together.here, passes_of(together.here), kappa_of(together)
        if not passes or kappa is None:
            return
        self._count_sums(together)
        # A step of the script's own class may divide what it was given.
        steps = [window.step for window in here if window.step is not None]
        if any(window.captured for window in here) or any(step.closure or step.is_own for step in steps):
            return
        found = [*_of_ranks(together, kappa)]
        if not found and kappa == 1 and may_be_one(here):
            found = [one for window in here for one in _of_passes(window)]
        # Losses of several lines are several losses, which may be summed up, as those of several tasks on ranks may. A
        # global count divides one loss, whatever lines it comes from.
        is_one = len(kinds(here)) == 1 and _train_the_same(here)
        proven = [one for one in found if is_one or one.law == "watch/averaged-once"]
        for one in [one for one in found if one not in proven]:
            self._findings.leave_open(_as_fact(one), step=one.step, site=one.site)
        self._steady.feed([(one.ranks[0], one, False) for one in proven], here)
        if kappa == 1 and is_one and _are_times_ranks(together):
            self._findings.leave_open(said("ranks.sum", ranks=together.ranks), step=here[0].index)

    def _count_sums(self, together: Together) -> None:
        # A batch that is made up counts nothing.
        passes = [one for one in passes_of(together.here) if factor_of(one)]
        total = total_of(together, together.here)
        if (
            total is None
            or together.is_joined
            or any(not one.summed for one in passes)
            or len(kinds(together.here)) > 1
        ):
            return
        of = self._sums[together.here[0].optimizer]
        of.steps += 1
        if near(total, 1):
            return
        of.off += 1
        of.least, of.most = min(of.least, total), max(of.most, total)
        if len(of.divisors) < _SEVERAL:
            of.divisors.add(1 / factor_of(passes[0]))

    def finish(self) -> None:
        for of in self._sums.values():
            if of.off and (of.off < of.steps / 2 or len(of.divisors) == _SEVERAL):
                self._findings.leave_open(said("micro-batches.total", least=of.least, most=of.most), of.off)


def _of_ranks(together: Together, kappa: float) -> Iterator[Finding]:
    """What a step makes of the losses of ranks. Those that still have data may be fewer than all in the end, and be
    averaged over."""
    here, ranks = together.here, together.ranks
    if ranks == 1 or together.is_joined:
        return
    if near(kappa, ranks) and all(near(weight_of(window), 1) for window in here) and may_be_one(here):
        for window in here:
            yield _finding(window, "watch/means-averaged", said("ranks.means-added", times=ranks), ranks)
    total = total_by_count(together, kappa)
    if total is not None and near(total, 1 / ranks):
        for window in here:
            yield _finding(window, "watch/averaged-once", said("ranks.divided-by-count"), 1 / ranks)
        return
    passes = passes_of(here)
    everything = sum(map(targets_of, passes))
    # Were the counts equal, what divides might be each rank's own, times a factor of the script's. Half of a loss may
    # be intended, but not by one number that says how many targets there are.
    are_bare = all(targets_of(one) and _numbers_beside_targets(one) <= 1 for one in passes)
    are_apart = len({sum(map(targets_of, window.backwards.values())) for window in here}) > 1
    if kappa == 1 and are_bare and are_apart and all(near(of_one_target(one) * everything, 1) for one in passes):
        for window in here:
            says = said("ranks.divided-by-all", targets=everything)
            yield _finding(window, "watch/averaged-once", says, 1 / ranks)


def _of_passes(window: Window) -> Iterator[Finding]:
    """What a step makes of the losses of a rank's micro-batches."""
    passes = [*window.backwards.values()]
    number, batches = len(passes), passes[0].batches if passes else 0
    divisors = [divisors_of(one) if is_mean(one) else [] for one in passes]
    # Once for the micro-batches, and by the same number for something else again, no mean is.
    if number >= _SEVERAL and all(of_one == 2 * [number] for of_one in divisors):
        yield _finding(window, "watch/divided-once", said("micro-batches.divided-twice", number=number), 1 / number)
    # Who makes one batch of all, or leaves some out on purpose, has one mean, and nothing to divide it by.
    elif number == 1 and batches >= _SEVERAL and passes[0].loader is not None and divisors == [[batches]]:
        yield _finding(window, "watch/every-backward", said("micro-batches.last-only", batches=batches), 1 / batches)
    elif number > 1 and are_batches(passes) and not _waits(window) and all(map(_is_bare, passes)):
        yield _finding(window, "watch/means-averaged", said("micro-batches.sum", passes=number), number)


def _as_fact(finding: Finding) -> Said:
    """A finding that is none if the losses are several."""
    assert isinstance(finding.says, Said)
    if finding.law == "watch/divided-once":
        number = finding.says.values["number"]
        return said("micro-batches.divided", number=number**2, passes=[number])
    if finding.says.code == "ranks.means-added":
        return said("ranks.sum", ranks=finding.says.values["times"])
    return finding.says


def _are_times_ranks(together: Together) -> bool:
    """Whether each rank's losses are a mean over its own targets times the number of ranks, and averaged over these."""
    are_means = all(map(is_mean, passes_of(together.here)))
    return together.ranks > 1 and are_means and all(near(weight_of(one), together.ranks) for one in together.here)


def _numbers_beside_targets(backward: records.Backward) -> int:
    """How many numbers a loss is multiplied with or divided by, but for the loss scale and how many targets it has."""
    left = [one for one in backward.factors if not near(one, 1)]
    for known in (backward.scale, backward.targets):
        own = next((one for one in left if known and near(one, known)), None)
        if own is not None:
            left.remove(own)
    return len(left)


def _train_the_same(here: list[Window]) -> bool:
    """Whether the backward passes of all ranks reach the same parameters."""
    return len({frozenset(number for number, of in window.new.items() if of) for window in here}) == 1


def _waits(window: Window) -> bool:
    """Whether another optimizer steps between its backward passes, so that these are no micro-batches: it is the one
    that steps more rarely, as for an embedding."""
    calls = [one for one in window.moments if isinstance(one, (records.Backward, records.Stepped))]
    passes = [place for place, one in enumerate(calls) if isinstance(one, records.Backward)]
    between = calls[passes[0] : passes[-1]] if passes else []
    return any(isinstance(one, records.Stepped) and one.optimizer != window.optimizer for one in between)


def _is_bare(backward: records.Backward) -> bool:
    """Whether it is a mean that only the loss scale multiplies. Factors that come to 1 together, as the number of ranks
    over that of micro-batches may, are intended."""
    factors = [factor for factor in backward.factors if not near(factor, 1)]
    return bool(backward.targets) and factors in ([], [backward.scale])


def _finding(window: Window, law: str, says: Said, times: float) -> Finding:
    """times: what the update is of that of the mean."""
    site = next(iter(window.backwards.values())).site
    passes = frozenset((window.rank, number) for number in window.backwards)
    effect = said("times-the-mean", times=times)
    return Finding(law, says, window.index, (window.rank,), site, effect, window.optimizer, passes)
