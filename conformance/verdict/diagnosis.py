"""Finds the known faults that explain the numbers of a case, and those that the case rules out.

One case cannot name the bug: with two micro-batches on two ranks, several bugs halve the gradient. The report names the
bug over all cases of a run, from the suspects of each.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import islice
from math import isfinite
from typing import NamedTuple

from conformance.oracle.accepted_readings import Reading
from conformance.oracle.affine import Affine, Enclosure, Gap, Unbounded
from conformance.oracle.faults import RARE, applicable
from conformance.oracle.faults.clip_and_scale import Recorded
from conformance.oracle.faults.some_windows import limited, places
from conformance.oracle.power import bounded, separation
from conformance.oracle.recurrence import Deviation, Recurrence, Step, Trajectory, deviating, pairs
from conformance.results.result_lines import ONLY, PAIR
from conformance.results.result_lines import Vector as Numbers
from conformance.trace.events import Clip, Optimizer
from conformance.verdict.combinations import Combination, combination
from conformance.verdict.comparison import Difference, outside
from conformance.verdict.evidence import RankEvidence, exactly
from conformance.workloads.kept_answers import ANSWERS
from conformance.workloads.layout import Window
from conformance.workloads.problem import Problem
from conformance.workloads.workload import Vector

#: The number of windows to compare. Faults show early; comparing hundreds of epochs would only cost time.
HORIZON = 16


@dataclass(frozen=True)
class Suspects:
    """The evidence of a case on the catalogued faults, by their names.

    explained_by: all faults that give its numbers; if none does, pairs of faults, or faults of some windows. ruled_out:
    faults that would show, and give other numbers. gradient_factors: a correct trainer that multiplies its gradients by
    any of these gives the numbers; several leave the factor open. step_factors: the same for a factor of the learning
    rate. combination: factors of parts that give them, if no fault does.
    """

    explained_by: tuple[str, ...] = ()
    ruled_out: tuple[str, ...] = ()
    gradient_factors: tuple[Fraction, ...] = ()
    step_factors: tuple[Fraction, ...] = ()
    combination: Combination | None = None

    @property
    def names_one(self) -> bool:
        """Whether a single fault gives the numbers. Where clipping or a wide bound hides factors, too many do."""
        hides = len(self.gradient_factors) > 1
        return not hides and any(PAIR not in name and ONLY not in name for name in self.explained_by)


def acquitted(reading: Reading, right: Trajectory) -> Suspects:
    """The suspects of a case with correct numbers and sufficient power: rules out all faults that bounds exclude."""
    problem, is_exact = reading.problem, right.certificate.exact

    def excluded() -> tuple[str, ...]:
        return tuple(fault.name for fault in applicable(problem) if is_exact or not fault.is_fine(problem))

    return Suspects(ruled_out=ANSWERS.get(("excluded", problem, is_exact), excluded))


def suspects(
    reading: Reading, right: Trajectory, difference: Difference, ranks: Sequence[RankEvidence], diverged: bool
) -> Suspects:
    """The suspects of a case with wrong numbers, by the rank that differs first."""
    rank, windows = ranks[difference.rank], _compared(reading, right, difference, ranks)

    def fit(*faults: Deviation) -> _Fit:
        return _fit(reading.recurrence(right.history, *faults).halves(windows), right, difference.step, rank)

    def explain(found: _Fit, *faults: Deviation) -> bool:
        # A bound that also contains the correct answer explains nothing.
        return (found.gap or 0) > 1 and all(map(reads_as_much, faults))

    def reads_as_much(fault: Deviation) -> bool:
        """Whether the rank trained all windows that a bug in reading reads, except short ones, which it may drop."""
        read = reading.recurrence(right.history, fault).read()
        whole = sum(len(window.batch) == len(read[0].batch) for window in read)
        return [*read] == [*reading.problem.windows] or whole <= len(rank.steps) + len(right.skips)

    known = applicable(reading.problem)
    fits = [(fault, fit(fault)) for fault in known]
    explained = [fault for fault, found in fits if explain(found, fault)]
    others = [fault for fault in known if fault not in explained]
    by_weights = any(attempt.gradients is None for attempt in rank.steps)
    ruled_out = tuple(
        fault.name for fault in others if _shows(reading.recurrence(right.history, fault), right, windows, by_weights)
    )
    seen = _recorded(rank)
    rare = [fault for fault in applicable(reading.problem, RARE) if explain(fit(fault, seen), fault)]
    # Several forms of a bug have one name.
    names = list(dict.fromkeys(fault.name for fault in (*explained, *rare)))
    if diverged:
        # Trying all pairs takes long, and among so many, one fits diverged ranks by chance.
        return Suspects(tuple(names), ruled_out)
    start = reading.problem.workload.start
    candidates = list(_candidates(right, start, rank, difference))
    of_gradients = _factors(
        candidates,
        lambda factor: [fit(one).gap for one in _multiplied_gradients(factor, reading.problem)],
        None if reading.problem.workload.clip else _shown(right, rank, difference),
    )
    of_steps = _factors(candidates, lambda factor: [fit(_multiplied_steps(factor)).gap])
    found = Suspects(tuple(names), ruled_out, of_gradients, of_steps)
    if not found.names_one:
        solved = combination(reading.problem, rank, lambda one: explain(fit(one), one))
        found = replace(found, combination=solved)
    if not names and found.combination is None:
        # A fault that is wrong in a correct step is not one of two.
        late = [fault for fault, tried in fits if tried.steps >= difference.step]
        both = (f"{one.name}{PAIR}{two.name}" for one, two in pairs(late) if explain(fit(one, two), one, two))
        found = replace(found, explained_by=tuple(both))
    return found


def in_some_windows(
    reading: Reading, right: Trajectory, difference: Difference, ranks: Sequence[RankEvidence]
) -> tuple[str, ...]:
    """The names of faults that give the wrong numbers if other kinds of windows are correct."""
    rank, windows = ranks[difference.rank], _compared(reading, right, difference, ranks)
    found = []
    for place, own in places(reading.problem, right.skips).items():
        if right.steps[difference.step].window in own:
            # What comes before them is the same for all faults.
            taken, before = sum(step.window < min(own) for step in right.steps), reading.recurrence(right.history)
            deque(islice(before.steps(), taken), maxlen=0)
            for fault, deviation in limited(reading.problem, own):
                wrong = before.continued(deviating((deviation, *reading.deviations)))
                if (_fit(wrong.halves(windows), right, difference.step, rank, taken).gap or 0) > 1:
                    found.append(f"{fault.name}{ONLY}{place}")
    return tuple(found)


def _compared(reading: Reading, right: Trajectory, difference: Difference, ranks: Sequence[RankEvidence]) -> int:
    """The number of windows to compare."""
    steps = ranks[difference.rank].steps
    later = (number for number in range(difference.step + 1, len(steps)) if not _is_finite(steps[number].weights))
    # NaN is a consequence of the first wrong number, and says nothing about its cause.
    windows = min(next(later, len(steps)) + len(right.skips), HORIZON)
    # Once ranks run out of data, several behaviours are valid, which say nothing about an earlier fault.
    settled = sum(window.with_data == window.world_size for window in reading.problem.windows)
    return min(windows, settled) if difference.step < settled else windows


def _is_finite(numbers: Numbers) -> bool:
    return all(one is None or isfinite(one) for one in numbers)


def _recorded(rank: RankEvidence) -> Deviation:
    """Finds what a rank did: the clips of the window with the most of them, and the optimizers."""
    by_window = defaultdict[int | None, list[frozenset[int]]](list)
    for one in rank.events.of(Clip):
        # A threshold of infinity, which is a string, only reads the norm.
        if one.kind == "norm" and not isinstance(one.threshold, str):
            by_window[one.window].append(frozenset(one.parameters))
    optimizers = {one.optimizer: frozenset(one.trainable) for one in rank.events.of(Optimizer)}
    seen = {"clips": max(by_window.values(), key=len, default=[]), "optimizers": [*optimizers.values()]}
    return Deviation("does what was recorded", type("Seen", (Recorded,), seen))


class _Fit(NamedTuple):
    """steps: how many have the rank's numbers. gap: that to the correct answer at its first difference, if all do."""

    steps: int
    gap: Gap | None = None


def _fit(
    wrong: Iterator[tuple[int, Enclosure]],
    right: Trajectory,
    first_difference: int,
    rank: RankEvidence,
    taken: int = 0,
) -> _Fit:
    """Compares the halves of steps, which come after ``taken`` correct ones, with the rank's steps."""
    found = None
    try:
        for window, gradient in wrong:
            if taken == len(rank.steps):
                return _Fit(taken)
            seen = rank.steps[taken]
            # A fault may lose a gradient: then its step uses none, as the weights show.
            gradients = [0.0 if value is None else value for value in seen.gradients or ()]
            # Weights take as long to compute as gradients.
            if gradients and outside(gradient, tuple(gradients)) is not None:
                return _Fit(taken)
            step = Step(window, gradient, next(wrong)[1])
            if outside(step.weights, seen.weights) is not None:
                return _Fit(taken)
            if taken == first_difference:
                found = separation(right.steps[taken], step, by_weights=seen.gradients is None)
            taken += 1
    except Unbounded:
        return _Fit(taken)
    return _Fit(taken, found)


def _shows(wrong: Recurrence, right: Trajectory, windows: int, by_weights: bool) -> bool:
    """Whether a recurrence differs from the correct answer by more than rounding."""
    steps = zip(right.steps, bounded(wrong.steps(windows)), strict=False)
    return any(separation(expected, step, by_weights=by_weights) > 1 for expected, step in steps)


def _multiplied_gradients(factor: Fraction, problem: Problem) -> Iterator[Deviation]:
    """Yields recurrences with gradients multiplied before and after clipping."""

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
    """The candidates that give the numbers, and their neighbours that also do: clipping or a wide bound may hide the
    exact factor, unless it is ``shown``. Empty if the bounds of all contain the correct answer."""
    found: dict[Fraction, Gap] = {}

    def add(factor: Fraction) -> None:
        # Of nearly equal factors, keep the first, which is the simplest.
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
    """The common factor of all entries in the first wrong gradient; None if there is none."""
    pairs_of = zip(
        right.steps[difference.step].gradient.center, rank.steps[difference.step].gradients or (), strict=False
    )
    ratios = {(exactly(seen) or 0) / expected for expected, seen in pairs_of if expected}
    simple = {ratio.limit_denominator(64) for ratio in ratios}
    return simple.pop() if len(simple) == 1 else None


def _candidates(right: Trajectory, start: Vector, rank: RankEvidence, difference: Difference) -> Iterator[Fraction]:
    """Yields possible factors of the first wrong gradients or step, the simplest fractions first.

    Clipping may hide the factor in each entry, so simple factors are always tried.
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
    # A factor near 1 is rounding.
    yield from dict.fromkeys(
        factor for factor in (*simple, *_SIMPLE, *ratios) if factor and abs(factor - 1) > _ROUNDING
    )


_ROUNDING = Fraction(1, 2**10)
_SIMPLE = (
    *(factor for number in range(2, 9) for factor in (Fraction(1, number), Fraction(number))),
    # Ratios of rounded numbers are too inexact to show these.
    *(factor for number in (2, 3, 5, 6, 7, 8) for factor in (Fraction(number**-0.5), Fraction(number**0.5))),
)
