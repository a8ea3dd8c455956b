"""Whether a comparison can fail: the distance between the right answer and what each catalogued fault would give."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from conformance.oracle.affine import Unbounded
from conformance.oracle.faults import Fault, applicable
from conformance.oracle.recurrence import Step, Trajectory
from conformance.workloads.layout import Layout
from conformance.workloads.precision import Precision
from conformance.workloads.workload import Workload


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


def separation(right: Step, wrong: Step) -> Fraction | None:
    """The larger of the gaps between two steps' gradients and weights; None stands for infinity."""
    gaps = right.gradient.gap(wrong.gradient), right.weights.gap(wrong.weights)
    return None if None in gaps else max(gap for gap in gaps if gap is not None)


@lru_cache(maxsize=512)
def power(
    workload: Workload, layout: Layout, precision: Precision, right: Trajectory, limit: int | None = None
) -> Power | None:
    """The power against the fault that comes nearest, a lower bound: each fault is followed until it shows.

    Args:
        limit: look at the first ``limit`` windows only.

    Returns:
        None if no catalogued fault applies.
    """
    nearest: Power | None = None
    for fault in applicable(workload, layout, precision):
        wrong = fault.recurrence(workload, layout, precision, right.skips, right.scales, limit)
        found = Power(_largest_gap(right, wrong.steps()), fault)
        if nearest is None or _below(found.gap, nearest.gap):
            nearest = found
    return nearest


def _largest_gap(right: Trajectory, wrong: Iterable[Step]) -> Fraction | None:
    largest = Fraction(0)
    # A fault may outgrow every format; how far it was off until then is a lower bound as well.
    with suppress(Unbounded):
        for expected, other in zip(right.steps, wrong, strict=False):
            gap = separation(expected, other)
            if gap is None or gap > 1:
                return gap
            largest = max(largest, gap)
    return largest


def _below(gap: Fraction | None, other: Fraction | None) -> bool:
    return gap is not None and (other is None or gap < other)
