"""Whether a comparison can fail: how far the answers that it must reject are from the right one.

These are the answer of each catalogued fault and, as a probe, the right answer with one sample misplaced.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import zip_longest
from math import inf
from typing import TypeVar

from conformance.oracle.accepted_readings import Reading
from conformance.oracle.affine import Affine, Enclosure, Gap, Unbounded
from conformance.oracle.faults import Fault, applicable
from conformance.oracle.recurrence import Deviation, Recurrence, Step, Trajectory
from conformance.workloads.layout import Window
from conformance.workloads.workload import Vector

T = TypeVar("T")


@dataclass(frozen=True)
class Power:
    """``gap``: the distance between right and wrong over the sum of both error radii.

    ``fault`` is the catalogued fault that comes nearest. Above 1 the enclosures of right and wrong have no point in
    common, so no evaluation of the fault, whatever its rounding errors, can pass as right.
    """

    gap: Gap
    fault: Fault

    @property
    def sufficient(self) -> bool:
        return self.gap > 1


class OneSampleMoved(Recurrence):
    """In every window one sample is read in place of another: the neighbouring rank's, else another micro-batch's.

    With one rank and one micro-batch it is the neighbouring sample.
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


PROBE = Deviation("reads one sample in place of a neighbour", OneSampleMoved)


class PartLeftOver(Recurrence):
    """Each gradient has with it the least that a rank can leave of the one before: what one micro-batch on one rank
    adds to an average, of a gradient that the loss scale does not multiply among others that it does."""

    _before: Affine | None = None

    def averaged(self, window: Window, weights: Affine, coefficients: Vector) -> Affine:
        own, before = super().averaged(window, weights, coefficients), self._before
        self._before = own
        parts = window.world_size * window.nominal * self.loss_scale
        return own if before is None else own.plus(before.scaled(1 / parts))


LEAST_HARM = Deviation("leaves a part of each gradient in the next one", PartLeftOver)


def bounded(steps: Iterable[T]) -> Iterator[T]:
    """The steps before the first without a finite bound: a deviation's numbers may outgrow every format."""
    with suppress(Unbounded):
        yield from steps


def separation(right: Step, wrong: Step, *, by_weights: bool = False) -> Gap:
    """The larger of the gaps between two steps' gradients and weights, or the gap between their weights alone."""
    of_weights = right.weights.gap(wrong.weights)
    return of_weights if by_weights else max(right.gradient.gap(wrong.gradient), of_weights)


@lru_cache(maxsize=128)
def power(reading: Reading, right: Trajectory, limit: int | None = None, *, by_weights: bool = False) -> Power | None:
    """A lower bound of the power against the fault that comes nearest: each fault is followed until it shows.

    Args:
        reading: what ``right`` is the answer to.
        limit: look at the first ``limit`` windows only.
        by_weights: the gradients are not known, and only weights are compared.

    Returns:
        None if no catalogued fault applies.
    """
    is_cut = limit is not None and limit < len(reading.problem.windows)
    found = [
        Power(_largest_gap(right, reading.recurrence(right.history, fault).halves(limit), is_cut, by_weights), fault)
        for fault in applicable(reading.problem)
    ]
    return min(found, key=lambda one: one.gap, default=None)


def shows_least_harm(reading: Reading, right: Trajectory, window: int, limit: int, *, by_weights: bool) -> bool:
    """Whether right numbers prove harmless what was done from a window on: the least harm exceeds the bounds in that
    window or one of the next, ``limit`` in all. ``by_weights``: as in `power`."""
    wrong = bounded(reading.recurrence(right.history, LEAST_HARM).steps(window + limit))
    steps = zip(right.steps, wrong, strict=False)
    return any(separation(*pair, by_weights=by_weights) > 1 for pair in steps if pair[0].window >= window)


def _largest_gap(right: Trajectory, wrong: Iterator[tuple[int, Enclosure]], is_cut: bool, by_weights: bool) -> Gap:
    """The gap of the first step at which it is above 1, else the largest; that of another number of steps is infinite.
    ``wrong``: see `Recurrence.halves`; ``is_cut``: it ends before the run does."""
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
            # Weights cost as much as the gradient before them, and nothing is above infinity.
            if largest == inf or (is_weights and largest > 1):
                break
    return largest
