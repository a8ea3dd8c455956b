"""Small static figures in SVG: expected and observed values by step, where a reader can see that they differ.

They are drawn here, not in the browser, and so need no JavaScript and print well. Colours are CSS classes (`s0` to `s2`
for the series) with a light and a dark theme. A dot is a line of length zero with round caps, and points are relative
to each other: the shortest form, as a report has thousands.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from markupsafe import Markup

from conformance.results.result_lines import CaseRecord, Quantity, Step, Vector

from .text import number

WIDTH, HEIGHT = 360, 168
LEFT, RIGHT = 62, 350
PANEL = (136, 22)
CLASSES = ("s0", "s1", "s2")


def drawing(plot: Plot, skips: Iterable[int] = ()) -> Markup:
    """The inside of an `<svg>` of `WIDTH` and `HEIGHT`. `skips`: the windows whose step was skipped."""
    points = [point for series in plot.series for point in series.points]
    skipped = list(skips) if plot.by_window else []
    across = counting(max([point.at for point in points] + skipped), LEFT + 6, RIGHT - 4)
    up = linear((value for p in points for value in (p.expected, p.observed) if value is not None), *PANEL)
    noun = "window" if plot.by_window else "step"
    parts = [frame(up, PANEL), steps(across, HEIGHT - 14), f'<text x="{LEFT}" y="12">{plot.quantity}</text>']
    parts.append(f'<text class="end" x="{RIGHT}" y="12">{noun} →</text>')
    if (first := plot.first_difference) is not None:
        parts.append(f'<path class="fp" d="M{across(first)} {PANEL[1]}V{PANEL[0]}"/>')
    parts += [f'<path class="fk" d="M{across(skip)} {PANEL[1]}V{PANEL[0]}"/>' for skip in skipped]
    for name, series in zip(CLASSES, plot.series, strict=False):
        expected = line(across, up, ((p.at, p.expected) for p in series.points))
        observed, lost = dots(across, up, PANEL[1], ((p.at, p.observed) for p in series.points))
        paths = ("fe", expected), ("fo", observed), ("fw", lost)
        drawn = "".join(f'<path class="{kind}" d="{path}"/>' for kind, path in paths if path)
        parts.append(f'<g class="{name}">{drawn}</g>')
    return Markup("".join(parts))


def frame(axis: Axis, span: tuple[int, int]) -> str:
    """The grid lines and labels of a panel."""
    lines = "".join(f"M{LEFT} {axis(value)}H{RIGHT}" for value, _ in axis.ticks)
    labels = "".join(f'<text x="{LEFT - 6}" y="{axis(value) + 4}">{label}</text>' for value, label in axis.ticks)
    spine = f'<path class="fs" d="M{LEFT} {span[1]}V{span[0]}"/>'
    return f'<path class="fg" d="{lines}"/><g class="fy">{labels}</g>{spine}'


def steps(across: Axis, y: int) -> str:
    """The labels of the axis of steps."""
    labels = "".join(f'<text x="{across(value)}" y="{y}">{label}</text>' for value, label in across.ticks)
    return f'<g class="fx">{labels}</g>'


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
    """A dot for each finite value, and a cross at the `top` of the panel for each other one."""
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


LARGEST = 1e300  # beyond it, the span of an axis overflows


@dataclass(frozen=True)
class Axis:
    """Maps values onto pixels, `low` to `start` and `high` to `end`, with labelled ticks."""

    low: float
    high: float
    start: float
    end: float
    ticks: tuple[tuple[float, str], ...]

    def __call__(self, value: float) -> int:
        """The pixel of a finite value. A value outside of the axis is drawn at its edge."""
        share = (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start))


def linear(values: Iterable[float], start: float, end: float) -> Axis:
    """An axis over the finite `values`, with about five round ticks, or one if all are equal."""
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
    """An axis for 0 to `last`."""
    step = max(1, round(_round_step(last / 6))) if last else 1
    ticks = tuple((float(i), str(i)) for i in range(0, last + 1, step))
    return Axis(0.0, float(max(last, 1)), start, end, ticks)


def _round_step(rough: float) -> float:
    """The next number of the form 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))


MOST_SERIES, MOST_POINTS = len(CLASSES), 32


@dataclass(frozen=True)
class Point:
    """One parameter after one step. None: a missing value, such as an unset gradient. error: observed − expected."""

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
        """The largest |error|; infinite if a value is missing or NaN."""
        return max((_magnitude(point.error) for point in self.points), default=0.0)


@dataclass(frozen=True)
class Plot:
    """The series of a quantity.

    `parameters`: how many there are in all. `first_difference`: the position of the first wrong step.
    """

    quantity: Quantity
    by_window: bool
    series: tuple[Series, ...]
    parameters: int
    first_difference: int | None

    @property
    def is_apart(self) -> bool:
        """Whether a reader can see that observed values differ from expected ones."""
        points = [point for series in self.series for point in series.points]
        shown = [p.expected for p in points if p.expected is not None and abs(p.expected) < LARGEST]
        span = max(shown, default=0.0) - min(shown, default=0.0)
        return any(_magnitude(p.error) > 0.03 * span for p in points if p.observed is not None)


def complete_plot(case: CaseRecord, quantity: Quantity) -> Plot | None:
    """All series of `quantity` in `case`, or None if the case has no numbers of it."""
    steps = [step for step in case.steps if _columns(step, quantity)[1]]
    if not steps:
        return None
    by_window = bool(case.skips)
    count = max(len(column or ()) for step in steps for column in _columns(step, quantity)[:2])
    names = [*case.parameters, *(f"[{i}]" for i in range(len(case.parameters), count))]
    series = tuple(
        Series(name, tuple(_point(step, quantity, i, by_window) for step in steps)) for i, name in enumerate(names)
    )
    wrong = case.first_difference.step if case.first_difference and case.first_difference.quantity == quantity else None
    differed = next((_at_x(step, by_window) for step in steps if step.step == wrong), None)
    return Plot(quantity, by_window, series, len(names), differed)


def plot(case: CaseRecord) -> Plot | None:
    """`complete_plot` of the quantity that first differs, thinned for a small figure; None if no error is visible.

    It keeps the step with the largest error in each stretch of steps, and the parameters with the largest errors.
    """
    first = case.first_difference
    whole = complete_plot(case, first.quantity if first else "weights")
    if whole is None or not whole.is_apart:
        return None
    worst = {id(one) for one in sorted(whole.series, key=lambda one: -one.largest)[:MOST_SERIES]}
    kept = [one for one in whole.series if id(one) in worst and one.largest]
    chosen = _thinned(kept, whole.first_difference)
    thin = tuple(Series(one.name, tuple(one.points[i] for i in chosen)) for one in kept)
    return replace(whole, series=thin)


def _at_x(step: Step, by_window: bool) -> int:
    return step.window if by_window else step.step


def _columns(step: Step, quantity: Quantity) -> tuple[Vector | None, ...]:
    if quantity == "weights":
        return step.expected, step.observed, step.error, step.bound
    return step.gradient_expected, step.gradient_observed, step.gradient_error, step.gradient_bound


def _point(step: Step, quantity: Quantity, i: int, by_window: bool) -> Point:
    expected, observed, error, bound = values(step, quantity, i)
    if expected is not None and observed is not None:
        error = observed - expected if error is None else math.copysign(error, observed - expected)
    return Point(_at_x(step, by_window), expected, observed, error, bound)


def values(step: Step, quantity: Quantity, i: int) -> tuple[float | None, ...]:
    """Expected, observed, error and bound of a parameter after a step; None if unknown."""
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
