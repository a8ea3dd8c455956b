"""The power of a comparison: the distance between the correct answer and the wrong answers that it must reject.

The wrong answers are those of the catalogued faults and, as a probe, the correct answer with one misplaced sample.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache, partial
from itertools import zip_longest
from math import inf
from typing import TypeVar

from conformance.oracle.accepted_readings import Reading
from conformance.oracle.affine import Affine, Enclosure, Gap, Unbounded
from conformance.oracle.faults import CATALOGUE, Fault, applicable
from conformance.oracle.recurrence import Deviation, Recurrence, Step, Trajectory
from conformance.workloads.kept_answers import ANSWERS
from conformance.workloads.layout import Window
from conformance.workloads.workload import Vector

T = TypeVar("T")


@dataclass(frozen=True)
class Power:
    """``gap``: the distance between correct and wrong answer over the sum of both error radii.

    ``fault``: the nearest catalogued fault. Above 1, the enclosures have no point in common, so the fault cannot pass
    with any rounding errors.
    """

    gap: Gap
    fault: Fault

    @property
    def sufficient(self) -> bool:
        return self.gap > 1


class OneSampleMoved(Recurrence):
    """Every window reads one sample instead of another: the neighbouring rank's, else another micro-batch's.

    With one rank and one micro-batch, it is the neighbouring sample.
    """

    def counted(self, window: Window) -> Vector:
        moved = list(super().counted(window))
        own = window.shares[-1][-1]
        if window.world_size > 1:
            neighbour = window.shares[0][-1]
        elif window.length > 1:
            neighbour = window.shares[0][0]
        else:
            neighbour = own[:-1]
        source = next((index for index in reversed(own) if moved[index]), None)
        if source is not None and neighbour:
            moved[neighbour[-1]] += moved[source]
            moved[source] = Fraction(0)
        return tuple(moved)


PROBE = Deviation("reads one sample instead of a neighbour", OneSampleMoved)


class PartLeftOver(Recurrence):
    """Each gradient includes the smallest possible rest of the previous one: the contribution of one micro-batch on one
    rank to an average, not multiplied by the loss scale when others are."""

    _before: Affine | None = None

    def averaged(self, window: Window, weights: Affine, coefficients: Vector) -> Affine:
        own, before = super().averaged(window, weights, coefficients), self._before
        self._before = own
        parts = window.world_size * window.nominal * self.loss_scale
        return own if before is None else own.plus(before.scaled(1 / parts))


LEAST_HARM = Deviation("leaves a part of each gradient in the next one", PartLeftOver)


def bounded(steps: Iterable[T]) -> Iterator[T]:
    """Yields the steps before the first without a finite bound: a deviation's numbers may outgrow every format."""
    with suppress(Unbounded):
        yield from steps


def separation(right: Step, wrong: Step, *, by_weights: bool = False) -> Gap:
    """The larger of the gaps between two steps' gradients and weights, or only the gap between their weights."""
    of_weights = right.weights.gap(wrong.weights)
    return of_weights if by_weights else max(right.gradient.gap(wrong.gradient), of_weights)


@lru_cache(maxsize=128)
def power(reading: Reading, right: Trajectory, limit: int | None = None, *, by_weights: bool = False) -> Power | None:
    """A lower bound of the power against the nearest fault: each fault runs until it shows.

    Args:
        reading: the reading that ``right`` answers.
        limit: run only the first ``limit`` windows.
        by_weights: compare only weights, because the gradients are unknown.

    Returns:
        None if no catalogued fault applies.
    """
    key = ("power", reading, right.history, right.skips, limit, by_weights)
    gap, name = ANSWERS.get(key, partial(_nearest, reading, right, limit, by_weights=by_weights))
    # A fault has code, which is not kept.
    return next(
        (Power(gap, fault) for fault in CATALOGUE if fault.name == name and fault.applies(reading.problem)), None
    )


def _nearest(reading: Reading, right: Trajectory, limit: int | None, *, by_weights: bool) -> tuple[Gap, str | None]:
    """The smallest gap, and the name of its fault."""
    is_cut = limit is not None and limit < len(reading.problem.windows)
    gaps = [
        (_largest_gap(right, reading.recurrence(right.history, fault).halves(limit), is_cut, by_weights), fault.name)
        for fault in applicable(reading.problem)
        if not fault.is_fine(reading.problem)
    ]
    return min(gaps, key=lambda one: one[0], default=(inf, None))


def shows_least_harm(reading: Reading, right: Trajectory, window: int, limit: int, *, by_weights: bool) -> bool:
    """Whether correct numbers prove that the trainer did no harm from a window on: the least harm exceeds the bounds in
    one of ``limit`` windows, starting with that one. ``by_weights``: as in `power`."""
    wrong = bounded(reading.recurrence(right.history, LEAST_HARM).steps(window + limit))
    steps = zip(right.steps, wrong, strict=False)
    return any(separation(*pair, by_weights=by_weights) > 1 for pair in steps if pair[0].window >= window)


def _largest_gap(right: Trajectory, wrong: Iterator[tuple[int, Enclosure]], is_cut: bool, by_weights: bool) -> Gap:
    """The first gap above 1, else the largest; infinite for another number of steps. ``wrong``: see
    `Recurrence.halves`; ``is_cut``: it ends before the run does."""
    largest: Gap = Fraction(0)
    of_right = (half for step in right.steps for half in (step.gradient, step.weights))
    with suppress(Unbounded):
        for number, (expected, found) in enumerate(zip_longest(of_right, wrong)):
            if found is None and is_cut:
                break
            if expected is None or found is None:
                return inf
            is_weights = number % 2 == 1
            if is_weights or not by_weights:
                largest = max(largest, expected.gap(found[1]))
            # Weights are as expensive as the gradient before them, and no gap exceeds infinity.
            if largest == inf or (is_weights and largest > 1):
                break
    return largest
