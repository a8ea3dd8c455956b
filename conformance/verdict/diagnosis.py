"""Which known faults make the numbers of a case, and which would show in it and make others.

One case cannot name a cause: at two micro-batches on two ranks several mistakes halve the gradient. The report names
the cause over all cases of a run, from what is kept of each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from conformance.oracle.accepted_readings import Reading
from conformance.oracle.affine import Affine, Gap, Unbounded
from conformance.oracle.faults import applicable
from conformance.oracle.power import bounded, separation
from conformance.oracle.recurrence import Deviation, Recurrence, Trajectory, pairs
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

    @property
    def names_one(self) -> bool:
        """Whether one fault alone makes the numbers."""
        return any(PAIR not in name for name in self.explained_by)


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

    def gap(*faults: Deviation) -> Gap | None:
        return _gap(reading.recurrence(right.history, *faults), right, difference.step, rank, windows)

    def explain(*faults: Deviation) -> bool:
        # A bound that also contains the right answer explains nothing.
        return (gap(*faults) or 0) > 1

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
        _factors(
            candidates,
            lambda factor: map(gap, _multiplied_gradients(factor, reading.problem)),
            None if reading.problem.workload.clip else _shown(right, rank, difference),
        ),
        _factors(candidates, lambda factor: [gap(_multiplied_steps(factor))]),
    )


def _gap(wrong: Recurrence, right: Trajectory, first_difference: int, rank: RankEvidence, windows: int) -> Gap | None:
    """How far a recurrence that gives all numbers of the rank is from the right answer where they differ first; None if
    it does not give them."""
    taken, found = 0, None
    try:
        for step in wrong.steps(windows):
            if taken == len(rank.steps):
                return None
            seen = rank.steps[taken]
            if seen.gradients is not None and outside(step.gradient, seen.gradients) is not None:
                return None
            if outside(step.weights, seen.weights) is not None:
                return None
            if taken == first_difference:
                found = separation(right.steps[taken], step, by_weights=seen.gradients is None)
            taken += 1
    except Unbounded:
        return None
    return found


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
        def learning_rate(self, step: int, group: int = 0) -> Fraction:
            return factor * super().learning_rate(step, group)

    return Deviation(f"multiplies every step by {factor}", Multiplied)


def _factors(
    candidates: Iterable[Fraction],
    gaps: Callable[[Fraction], Iterable[Gap | None]],
    shown: Fraction | None = None,
) -> tuple[Fraction, ...]:
    """The candidates that give the numbers, and their neighbours that do so too: clipping or a wide bound may hide
    which it is, unless it is ``shown``. None if the bounds of all contain the right answer."""
    found: dict[Fraction, Gap] = {}

    def add(factor: Fraction) -> None:
        # Of nearly the same numbers, the simplest is meant.
        if not any(abs(factor - other) <= abs(other) / 64 for other in found):
            fitting = [gap for gap in gaps(factor) if gap is not None]
            if fitting:
                found[factor] = max(fitting)

    for factor in candidates:
        add(factor)
    if len(found) == 1:
        for factor in [one * share for one in found for share in (Fraction(7, 8), Fraction(9, 8))]:
            add(factor)
    if shown is not None and found.get(shown, 0) > 1:
        return (shown,)
    return tuple(found) if any(gap > 1 for gap in found.values()) else ()


def _shown(right: Trajectory, rank: RankEvidence, difference: Difference) -> Fraction | None:
    """The number by which every entry of the gradient that differs first is multiplied."""
    pairs_of = zip(
        right.steps[difference.step].gradient.center, rank.steps[difference.step].gradients or (), strict=False
    )
    ratios = {(exactly(seen) or 0) / expected for expected, seen in pairs_of if expected}
    simple = {ratio.limit_denominator(64) for ratio in ratios}
    return simple.pop() if len(simple) == 1 else None


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
    # What is nearly 1 is rounding.
    yield from dict.fromkeys(
        factor for factor in (*simple, *_SIMPLE, *ratios) if factor and abs(factor - 1) > _ROUNDING
    )


_ROUNDING = Fraction(1, 2**10)
_SIMPLE = (
    *(factor for number in range(2, 9) for factor in (Fraction(1, number), Fraction(number))),
    # A ratio of rounded numbers does not show these exactly enough.
    *(factor for number in (2, 3, 5, 6, 7, 8) for factor in (Fraction(number**-0.5), Fraction(number**0.5))),
)
