"""What a figure draws: expected, observed, error and bound of each parameter over the steps of a case."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from conformance.results.records import CaseRecord, Quantity, Step, Vector
from conformance.workloads.precision import PRECISIONS

MOST_SERIES, MOST_POINTS = 6, 32


@dataclass(frozen=True)
class Point:
    """One parameter after one step. None stands for a value that is missing, such as an unset gradient.

    `error` is signed, observed less expected; `bound` has its unit.
    """

    at: int
    expected: float | None
    observed: float | None
    error: float | None
    bound: float | None


@dataclass(frozen=True)
class Series:
    """One parameter over the steps."""

    name: str
    points: tuple[Point, ...]

    @property
    def largest(self) -> float:
        """The largest |error|; infinite if a value is missing or not a number."""
        return max((_magnitude(point.error) for point in self.points), default=0.0)


@dataclass(frozen=True)
class Plot:
    """The series of a quantity.

    `unit` is that of its errors, `parameters` how many there are in all, `first_difference` where on the axis of steps
    the trainer first differed from the right answer.
    """

    quantity: Quantity
    unit: str
    bounded: bool
    by_window: bool
    series: tuple[Series, ...]
    parameters: int
    first_difference: int | None


def complete_plot(case: CaseRecord, quantity: Quantity) -> Plot | None:
    """All series of `quantity` in `case`, or None if the case has no numbers of it."""
    steps = [step for step in case.steps if _columns(step, quantity)[1]]
    if not steps:
        return None
    bounded = any(bound for step in steps for bound in _columns(step, quantity)[3] or ())
    in_ulp = quantity == "weights" and all(step.ulp for step in steps) and case.precision in PRECISIONS
    ulp = PRECISIONS[case.precision].master.ulp if in_ulp else None
    by_window = bool(case.skips)
    count = max(len(column or ()) for step in steps for column in _columns(step, quantity)[:2])
    names = [*case.parameters, *(f"[{i}]" for i in range(len(case.parameters), count))]
    series = tuple(
        Series(name, tuple(_point(step, quantity, i, ulp, by_window) for step in steps)) for i, name in enumerate(names)
    )
    first = case.first_difference
    differed = None
    if first and first.quantity == quantity:
        differed = next((_at_x(step, by_window) for step in steps if step.step == first.step), None)
    return Plot(quantity, "ulp" if in_ulp else "", bounded, by_window, series, len(names), differed)


def plot(case: CaseRecord, quantity: Quantity) -> Plot | None:
    """`complete_plot`, thinned to what a small figure can show.

    Of many steps, it keeps the one with the largest error in each stretch; of many parameters, those with the largest
    errors.
    """
    whole = complete_plot(case, quantity)
    if whole is None:
        return None
    kept = _worst_of(whole.series)
    chosen = _thinned(kept, whole.first_difference)
    thin = tuple(Series(one.name, tuple(one.points[i] for i in chosen)) for one in kept)
    return replace(whole, series=thin)


def _at_x(step: Step, by_window: bool) -> int:
    return step.window if by_window else step.step


def _columns(step: Step, quantity: Quantity) -> tuple[Vector | None, ...]:
    if quantity == "weights":
        return step.expected, step.observed, step.error, step.bound
    return step.gradient_expected, step.gradient_observed, step.gradient_error, step.gradient_bound


def _point(
    step: Step, quantity: Quantity, i: int, ulp: Callable[[Fraction], Fraction] | None, by_window: bool
) -> Point:
    expected, observed, error, bound = values(step, quantity, i)
    if ulp is not None:
        error = _at(step.ulp, i)
        is_known = expected is not None and math.isfinite(expected)
        bound = bound / float(ulp(Fraction(expected))) if bound and expected is not None and is_known else None
    if expected is not None and observed is not None:
        error = observed - expected if error is None else math.copysign(error, observed - expected)
    return Point(_at_x(step, by_window), expected, observed, error, bound)


def values(step: Step, quantity: Quantity, i: int) -> tuple[float | None, ...]:
    """Expected, observed, error and bound of a parameter after a step; None for what is not known."""
    return tuple(_at(column, i) for column in _columns(step, quantity))


def _at(column: Sequence[float | None] | None, i: int) -> float | None:
    return column[i] if column and i < len(column) else None


def _worst_of(series: Sequence[Series]) -> list[Series]:
    kept = sorted(range(len(series)), key=lambda i: -series[i].largest)[:MOST_SERIES]
    return [series[i] for i in sorted(kept)]


def _thinned(series: list[Series], differed: int | None) -> list[int]:
    points = series[0].points
    count = len(points)
    if count <= MOST_POINTS:
        return list(range(count))
    kept = {0, count - 1} | {i for i, point in enumerate(points) if point.at == differed}
    buckets = MOST_POINTS - 3
    for b in range(buckets):
        stretch = range(b * count // buckets, (b + 1) * count // buckets)
        kept.add(max(stretch, key=lambda i: max(_magnitude(one.points[i].error) for one in series)))
    return sorted(kept)


def _magnitude(error: float | None) -> float:
    return math.inf if error is None or math.isnan(error) else abs(error)
