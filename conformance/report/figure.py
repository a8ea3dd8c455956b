"""Small static figures in SVG: expected and observed values above, signed errors on a symmetric log scale below, over
one axis of steps.

They are drawn here and not in the browser, so that they show without JavaScript and on paper. Colours are CSS classes
(`s0` to `s5` for the series), so that the page can theme them for light and dark. A dot is a line of length zero with
round caps, and points are written relative to each other: the shortest way, and a report has thousands.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from markupsafe import Markup

from conformance.results.records import CaseRecord, Quantity, Step, Vector
from conformance.workloads.precision import PRECISIONS

from .text import number, power_of_ten

WIDTH, HEIGHT = 360, 216
LEFT, RIGHT = 52, 350
VALUES, ERRORS = (100, 8), (196, 124)
CLASSES = ("s0", "s1", "s2", "s3", "s4", "s5")


def drawing(plot: Plot, skips: Iterable[int] = ()) -> Markup:
    """The inside of an `<svg viewBox="0 0 360 216">`. `skips` are the windows whose step was skipped."""
    points = [point for series in plot.series for point in series.points]
    skipped = list(skips) if plot.by_window else []
    across = counting(max([point.at for point in points] + skipped), LEFT + 6, RIGHT - 4)
    values = linear((value for p in points for value in (p.expected, p.observed) if value is not None), *VALUES)
    bounds = [sign * p.bound for p in points if p.bound for sign in (1, -1)]
    off = [p.error for p in points if p.error is not None]
    errors = symmetric([*off, *bounds], *ERRORS, linear_below=0 if plot.unit else None)
    parts = [frame(values, VALUES), frame(errors, ERRORS), _steps(across, plot.by_window)]
    unit = f" in {plot.unit}" if plot.unit else ""
    parts.append(f'<text class="fn" x="{LEFT + 4}" y="{ERRORS[1] - 5}">observed − expected{unit}</text>')
    if plot.first_difference is not None:
        x = across(plot.first_difference)
        parts.append(f'<path class="fp" d="M{x} {VALUES[1]}V{VALUES[0]}M{x} {ERRORS[1]}V{ERRORS[0]}"/>')
    parts += [f'<path class="fk" d="M{across(skip)} {VALUES[1]}V{VALUES[0]}"/>' for skip in skipped]
    for name, series in zip(CLASSES, plot.series, strict=False):
        parts.append(f'<g class="{name}">{_series(series, plot.bounded, across, values, errors)}</g>')
    return Markup("".join(parts))


def frame(axis: Axis, span: tuple[int, int]) -> str:
    """Grid lines and labels of a panel."""
    lines = "".join(f"M{LEFT} {axis(value)}H{RIGHT}" for value, _ in axis.ticks)
    labels = "".join(f'<text x="{LEFT - 6}" y="{axis(value) + 3}">{label}</text>' for value, label in axis.ticks)
    spine = f'<path class="fs" d="M{LEFT} {span[1]}V{span[0]}"/>'
    return f'<path class="fg" d="{lines}"/><g class="fy">{labels}</g>{spine}'


def steps(across: Axis, y: int) -> str:
    """The labels of an axis of steps."""
    labels = "".join(f'<text x="{across(value)}" y="{y}">{label}</text>' for value, label in across.ticks)
    return f'<g class="fx">{labels}</g>'


def _steps(across: Axis, by_window: bool) -> str:
    noun = "window" if by_window else "step"
    return f'{steps(across, HEIGHT - 6)}<text class="fn end" x="{RIGHT}" y="{VALUES[0] + 12}">{noun} →</text>'


def _series(series: Series, bounded: bool, across: Axis, values: Axis, errors: Axis) -> str:
    expected = line(across, values, ((p.at, p.expected) for p in series.points))
    limits = [(p.at, p.bound) for p in series.points if bounded]
    bound = line(across, errors, limits) + line(across, errors, ((at, -b if b else b) for at, b in limits))
    observed, lost = dots(across, values, VALUES[1], ((p.at, p.observed) for p in series.points))
    # An error of zero has no dot of its own: it would hide those that are not.
    off, far = dots(across, errors, ERRORS[1], ((p.at, p.error or None) for p in series.points))
    paths = (("fe", expected), ("fb", bound), ("fo", observed + off), ("fw", lost + far))
    return "".join(f'<path class="{name}" d="{path}"/>' for name, path in paths if path)


def line(across: Axis, up: Axis, points: Iterable[tuple[int, float | None]]) -> str:
    """A line through the finite points, broken where there is none."""
    path: list[str] = []
    last: tuple[int, int] | None = None
    for at, value in points:
        if value is None or not math.isfinite(value):
            last = None
            continue
        here = across(at), up(value)
        path.append(f"M{here[0]} {here[1]}" if last is None else f"l{_pair(here[0] - last[0], here[1] - last[1])}")
        last = here
    return "".join(path)


def dots(across: Axis, up: Axis, top: int, points: Iterable[tuple[int, float | None]]) -> tuple[str, str]:
    """A dot a finite value; a cross at the `top` of the panel for each that is infinite or not a number."""
    dots, crosses = [], []
    last: tuple[int, int] | None = None
    for at, value in points:
        if value is None:
            continue
        if math.isfinite(value):
            here = across(at), up(value)
            move = f"M{here[0]} {here[1]}" if last is None else f"m{_pair(here[0] - last[0], here[1] - last[1])}"
            dots.append(f"{move}h0")
            last = here
        else:
            crosses.append(f"M{across(at) - 3} {top}l6 6m0-6l-6 6")
    return "".join(dots), "".join(crosses)


def _pair(x: int, y: int) -> str:
    """Two coordinates; a sign separates them as well as a blank."""
    return f"{x}{y}" if y < 0 else f"{x} {y}"


LARGEST = 1e300  # beyond it, the span of an axis could overflow


@dataclass(frozen=True)
class Axis:
    """Maps values onto pixels, `low` to `start` and `high` to `end`, with labelled ticks. `warp` goes first: `low` and
    `high` are on its scale.
    """

    low: float
    high: float
    start: float
    end: float
    ticks: tuple[tuple[float, str], ...]
    warp: Callable[[float], float] = float

    def __call__(self, value: float) -> int:
        """The pixel of a finite value. One outside of the axis is drawn at its edge."""
        share = (min(max(self.warp(value), self.low), self.high) - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start))


def linear(values: Iterable[float], start: float, end: float) -> Axis:
    """An axis over those of `values` that can be drawn, with about five round ticks; with one if all are the same."""
    finite = [value for value in values if abs(value) < LARGEST] or [0.0]
    low, high = min(finite), max(finite)
    if high - low <= max(1e-12 * max(abs(low), abs(high)), 1 / LARGEST):
        half = max(abs(low), 1 / LARGEST)
        return Axis(low - half, low + half, start, end, ((low, number(low)),))
    step = _round_step((high - low) / 5)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    digits = max(3, math.ceil(math.log10(max(abs(low), abs(high)) / step)) + 1)
    ticks = tuple((i * step, number(i * step, digits)) for i in range(first, last + 1))
    margin = (high - low) * 0.06
    return Axis(low - margin, high + margin, start, end, ticks)


def counting(last: int, start: float, end: float) -> Axis:
    """An axis for the whole numbers 0 to `last`."""
    step = max(1, round(_round_step(last / 6))) if last else 1
    ticks = tuple((float(i), str(i)) for i in range(0, last + 1, step))
    return Axis(0.0, float(max(last, 1)), start, end, ticks)


def symmetric(values: Iterable[float], start: float, end: float, linear_below: int | None = None) -> Axis:
    """A symmetric log scale: linear up to 10^``linear_below`` on both sides of zero, in powers of ten beyond.

    By default that is the power of ten below the smallest value.
    """
    drawn = [value for value in values if value and math.isfinite(value)]
    smallest = min(map(abs, drawn), default=1.0)
    # Of a subnormal number no power of ten is left.
    foot = max(-300, math.floor(math.log10(smallest))) if linear_below is None else linear_below

    def warp(value: float) -> float:
        power = math.log10(abs(value)) - foot if value else -math.inf
        return math.copysign(1 + power if power > 0 else 10.0**power, value)

    low, high = min([-1.0, *map(warp, drawn)]), max([1.0, *map(warp, drawn)])
    ticks = [(0.0, "0")]
    for sign, decades in (("", math.floor(high)), ("−", math.floor(-low))):
        # The outermost, and one about halfway where there is room.
        for decade in sorted({decades, (decades + 1) // 2} if decades > 4 else {decades}):
            power = foot + decade - 1
            ticks.append(
                (math.copysign(10.0**power, -1 if sign else 1), sign + (power_of_ten(power) if power else "1"))
            )
    margin = (high - low) * 0.06
    return Axis(low - margin, high + margin, start, end, tuple(ticks), warp)


def _round_step(rough: float) -> float:
    """The next number of the form 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))


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
    worst = {id(one) for one in sorted(whole.series, key=lambda one: -one.largest)[:MOST_SERIES]}
    kept = [one for one in whole.series if id(one) in worst]
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
