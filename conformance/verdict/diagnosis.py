"""Which known faults make the numbers of a case, and which would show in it and make others.

One case cannot name a cause: at two micro-batches on two ranks several mistakes halve the gradient. The report names
the cause over all cases of a run, from what is kept of each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from conformance.oracle.accepted_readings import Reading
from conformance.oracle.affine import Affine, Unbounded
from conformance.oracle.deviation import Deviation, pairs
from conformance.oracle.faults import applicable
from conformance.oracle.power import bounded, separation
from conformance.oracle.recurrence import Recurrence, Trajectory
from conformance.results.records import PAIR
from conformance.verdict.comparison import Difference, outside
from conformance.verdict.evidence import RankEvidence, exactly
from conformance.workloads.layout import Window
from conformance.workloads.problem import Problem
from conformance.workloads.workload import Vector

#: Windows to compare. Faults show early; comparing hundreds of epochs would only cost time.
HORIZON = 16


@dataclass(frozen=True)
class Suspects:
    """What a case says of the catalogued faults, by their names.

    explained_by: those that make its numbers, all of them; if none does, pairs. ruled_out: those that would show in it,
    and make other numbers. gradient_factors: its numbers are those of a right trainer that multiplies its gradients by
    any of these; several show none. step_factors: the same of one that multiplies its learning rate.
    """

    explained_by: tuple[str, ...] = ()
    ruled_out: tuple[str, ...] = ()
    gradient_factors: tuple[Fraction, ...] = ()
    step_factors: tuple[Fraction, ...] = ()


def acquitted(reading: Reading) -> Suspects:
    """What a case with right numbers says, if its power is sufficient: every fault would have shown."""
    return Suspects(ruled_out=tuple(fault.name for fault in applicable(reading.problem)))


def suspects(
    reading: Reading, right: Trajectory, difference: Difference, ranks: Sequence[RankEvidence], diverged: bool
) -> Suspects:
    """What a case with wrong numbers says, by the rank that differs first.

    Pairs explain no ranks that diverged: with so many of them one fits by chance.
    """
    rank = ranks[difference.rank]
    windows = min(len(rank.steps) + len(right.skips), HORIZON)
    # What ranks do once some have run out of data is open: it shows no fault that showed before.
    settled = sum(window.with_data == window.world_size for window in reading.problem.windows)
    if difference.step < settled:
        windows = min(windows, settled)

    def explain(*faults: Deviation) -> bool:
        return _explains(reading.recurrence(right.history, *faults), right, difference.step, rank, windows)

    known = applicable(reading.problem)
    explained = [fault for fault in known if explain(fault)]
    others = [fault for fault in known if fault not in explained]
    by_weights = any(attempt.gradients is None for attempt in rank.steps)
    ruled_out = tuple(
        fault.name for fault in others if _shows(reading.recurrence(right.history, fault), right, windows, by_weights)
    )
    names = [fault.name for fault in explained]
    if not names and not diverged:
        names = [f"{one.name}{PAIR}{two.name}" for one, two in pairs(known) if explain(one, two)]
    if diverged:
        return Suspects(tuple(names), ruled_out)
    start = reading.problem.workload.start
    candidates = list(_candidates(right, start, rank, difference))
    return Suspects(
        tuple(names),
        ruled_out,
        _factors(candidates, lambda factor: any(map(explain, _multiplied_gradients(factor, reading.problem)))),
        _factors(candidates, lambda factor: explain(_multiplied_steps(factor))),
    )


def _explains(wrong: Recurrence, right: Trajectory, first_difference: int, rank: RankEvidence, windows: int) -> bool:
    """Whether a recurrence gives all numbers of the rank, and other ones than the right answer."""
    taken = 0
    try:
        for step in wrong.steps(windows):
            if taken == len(rank.steps):
                return False
            seen = rank.steps[taken]
            if seen.gradients is not None and outside(step.gradient, seen.gradients) is not None:
                return False
            if outside(step.weights, seen.weights) is not None:
                return False
            # A bound that also contains the right answer explains nothing.
            if (
                taken == first_difference
                and separation(right.steps[taken], step, by_weights=seen.gradients is None) <= 1
            ):
                return False
            taken += 1
    except Unbounded:
        return False
    return taken > first_difference


def _shows(wrong: Recurrence, right: Trajectory, windows: int, by_weights: bool) -> bool:
    """Whether a recurrence differs from the right answer by more than rounding."""
    steps = zip(right.steps, bounded(wrong.steps(windows)), strict=False)
    return any(separation(expected, step, by_weights=by_weights) > 1 for expected, step in steps)


def _multiplied_gradients(factor: Fraction, problem: Problem) -> Iterator[Deviation]:
    """Before clipping, and after it."""

    class Multiplied(Recurrence):
        def over_samples(self, window: Window) -> Fraction:
            return factor * super().over_samples(window)

    class ClippedAndMultiplied(Recurrence):
        def clip(self, vector: Affine) -> Affine:
            return super().clip(vector).scaled(factor)

    yield Deviation(f"multiplies every gradient by {factor}", Multiplied)
    if problem.workload.clip is not None:
        yield Deviation(f"multiplies every clipped gradient by {factor}", ClippedAndMultiplied)


def _multiplied_steps(factor: Fraction) -> Deviation:
    class Multiplied(Recurrence):
        def learning_rate(self, step: int) -> Fraction:
            return factor * super().learning_rate(step)

    return Deviation(f"multiplies every step by {factor}", Multiplied)


def _factors(candidates: Iterable[Fraction], explains: Callable[[Fraction], bool]) -> tuple[Fraction, ...]:
    """The candidates that explain the numbers, and the neighbours of the first that do so too: clipping or a wide bound
    may hide which it is."""
    found: list[Fraction] = []
    for factor in candidates:
        # Of nearly the same numbers, the simplest is meant.
        if not any(abs(factor - other) <= abs(other) / 64 for other in found) and explains(factor):
            found.append(factor)
    if len(found) == 1:
        found += [factor for factor in (found[0] * Fraction(7, 8), found[0] * Fraction(9, 8)) if explains(factor)]
    return tuple(found)


def _candidates(right: Trajectory, start: Vector, rank: RankEvidence, difference: Difference) -> Iterator[Fraction]:
    """What the gradients or the step that differ first may have been multiplied by, the simplest fractions first.

    Clipping may hide the factor in each entry, so simple ones are tried in any case.
    """
    step = difference.step
    before = right.steps[step - 1].weights.center if step else start
    expected, seen = right.steps[step], rank.steps[step]
    pairs_of = [
        *zip(map(exactly, seen.gradients or ()), expected.gradient.center, strict=False),
        *(
            (None if one is None else one - old, two - old)
            for one, two, old in zip(map(exactly, seen.weights), expected.weights.center, before, strict=False)
        ),
    ]
    ratios = [one / two for one, two in pairs_of if one and two and one != two]
    simple = [ratio.limit_denominator(64) for ratio in ratios]
    yield from dict.fromkeys(factor for factor in (*simple, *_SIMPLE, *ratios) if factor not in (0, 1))


_SIMPLE = (
    *(factor for number in range(2, 9) for factor in (Fraction(1, number), Fraction(number))),
    # A ratio of rounded numbers does not show these exactly enough.
    *(factor for number in (2, 3, 5, 6, 7, 8) for factor in (Fraction(number**-0.5), Fraction(number**0.5))),
)
