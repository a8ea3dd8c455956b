"""Which known faults make the numbers of a case, and which would show in it and make others.

One case cannot name a cause: at two micro-batches on two ranks several mistakes halve the gradient. The report names
the cause over all cases of a run, from what is kept of each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from conformance.oracle.accepted_readings import Reading
from conformance.oracle.affine import Unbounded
from conformance.oracle.deviation import Deviation, pairs
from conformance.oracle.faults import applicable
from conformance.oracle.power import bounded, separation
from conformance.oracle.recurrence import Recurrence, Trajectory
from conformance.results.records import PAIR
from conformance.verdict.comparison import Difference, outside
from conformance.verdict.evidence import RankEvidence, exactly
from conformance.workloads.layout import Window

#: Windows to compare. Faults show early; comparing hundreds of epochs would only cost time.
HORIZON = 16


@dataclass(frozen=True)
class Suspects:
    """What a case says of the catalogued faults, by their names.

    explained_by: those that make its numbers, all of them; if none does, pairs. ruled_out: those that would show in it,
    and make other numbers. factor: its gradients are those of a right trainer that multiplies them by this.
    """

    explained_by: tuple[str, ...] = ()
    ruled_out: tuple[str, ...] = ()
    factor: Fraction | None = None


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
    ruled_out = tuple(
        fault.name for fault in others if _shows(reading.recurrence(right.history, fault), right, windows)
    )
    names = [fault.name for fault in explained]
    if not names and not diverged:
        names = [f"{one.name}{PAIR}{two.name}" for one, two in pairs(known) if explain(one, two)]
    factor = None
    if not diverged:
        factor = next((one for one in _factors(right, rank, difference) if explain(_multiplied(one))), None)
    return Suspects(tuple(names), ruled_out, factor)


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


def _shows(wrong: Recurrence, right: Trajectory, windows: int) -> bool:
    """Whether a recurrence differs from the right answer by more than rounding."""
    steps = zip(right.steps, bounded(wrong.steps(windows)), strict=False)
    return any(separation(expected, step) > 1 for expected, step in steps)


def _multiplied(factor: Fraction) -> Deviation:
    class Multiplied(Recurrence):
        def over_samples(self, window: Window) -> Fraction:
            return factor * super().over_samples(window)

    return Deviation(f"multiplies every gradient by {factor}", Multiplied)


def _factors(right: Trajectory, rank: RankEvidence, difference: Difference) -> Iterator[Fraction]:
    """What the gradients of the step that differs first may have been multiplied by, the simplest fractions first.

    Clipping may hide the factor in each entry, so simple ones are tried in any case.
    """
    expected = right.steps[difference.step].gradient.center
    seen = map(exactly, rank.steps[difference.step].gradients or ())
    ratios = [one / two for one, two in zip(seen, expected, strict=False) if one and two and one != two]
    simple = [ratio.limit_denominator(64) for ratio in ratios]
    yield from dict.fromkeys(factor for factor in (*simple, *_SIMPLE, *ratios) if factor not in (0, 1))


_SIMPLE = tuple(factor for number in range(2, 9) for factor in (Fraction(1, number), Fraction(number)))
