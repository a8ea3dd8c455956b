"""Whether a comparison can fail: how far from the right answer is what it must not accept.

That is what each catalogued fault would give, and, as a probe, the right answer with one sample misplaced.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from conformance.oracle.accepted_readings import Reading
from conformance.oracle.affine import Unbounded
from conformance.oracle.deviation import Deviation
from conformance.oracle.faults import Fault, applicable
from conformance.oracle.recurrence import Recurrence, Step, Trajectory
from conformance.workloads.layout import Window
from conformance.workloads.workload import Vector


@dataclass(frozen=True)
class Power:
    """``gap``: the distance between right and wrong over the sum of both error radii; None for exact against exact.

    ``fault`` is the catalogued fault that comes nearest. Above 1 the enclosures of right and wrong have no point in
    common, so no evaluation of the fault, whatever its rounding errors, can pass as right.
    """

    gap: Fraction | None
    fault: Fault

    @property
    def sufficient(self) -> bool:
        return self.gap is None or self.gap > 1


class OneSampleMoved(Recurrence):
    """In every window one sample is read in place of another: one of the neighbouring rank, else of the next micro-
    batch.

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


def bounded(steps: Iterable[Step]) -> Iterator[Step]:
    """The steps up to the first that has no finite bound: what deviates may outgrow every format."""
    with suppress(Unbounded):
        yield from steps


def separation(right: Step, wrong: Step) -> Fraction | None:
    """The larger of the gaps between two steps' gradients and weights; None stands for infinity."""
    gaps = right.gradient.gap(wrong.gradient), right.weights.gap(wrong.weights)
    return None if None in gaps else max(gap for gap in gaps if gap is not None)


@lru_cache(maxsize=512)
def power(reading: Reading, right: Trajectory, limit: int | None = None) -> Power | None:
    """The power against the fault that comes nearest, a lower bound: each fault is followed until it shows.

    Args:
        reading: what ``right`` is the answer to.
        limit: look at the first ``limit`` windows only.

    Returns:
        None if no catalogued fault applies.
    """
    nearest: Power | None = None
    for fault in applicable(reading.problem):
        wrong = reading.recurrence(right.history, fault)
        found = Power(_largest_gap(right, bounded(wrong.steps(limit))), fault)
        if nearest is None or _below(found.gap, nearest.gap):
            nearest = found
    return nearest


def _largest_gap(right: Trajectory, wrong: Iterable[Step]) -> Fraction | None:
    largest = Fraction(0)
    for expected, other in zip(right.steps, wrong, strict=False):
        gap = separation(expected, other)
        if gap is None or gap > 1:
            return gap
        largest = max(largest, gap)
    return largest


def _below(gap: Fraction | None, other: Fraction | None) -> bool:
    return gap is not None and (other is None or gap < other)
