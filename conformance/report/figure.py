"""Small static figures in SVG: expected and observed values above, errors below, over one axis of steps.

They are drawn here and not in the browser, so that they show without JavaScript and on paper. Colours are CSS classes
(`s0` to `s5` for the series), so that the page can theme them for light and dark. A dot is a line of length zero with
round caps: the shortest way to write one, and a report has thousands.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from markupsafe import Markup

from .scales import Axis, counting, exponent, linear, magnitudes
from .series import Plot, Series

WIDTH, HEIGHT = 360, 190
LEFT, RIGHT = 52, 350
VALUES, ERRORS = (106, 8), (169, 127)
CLASSES = ("s0", "s1", "s2", "s3", "s4", "s5")


def drawing(plot: Plot, skips: Iterable[int] = ()) -> Markup:
    """The inside of an `<svg viewBox="0 0 360 190">`. `skips` are the windows whose step was skipped."""
    points = [point for series in plot.series for point in series.points]
    skipped = list(skips) if plot.by_window else []
    across = counting(max([point.at for point in points] + skipped), LEFT + 6, RIGHT - 4)
    values = linear((value for p in points for value in (p.expected, p.observed) if value is not None), *VALUES)
    errors = magnitudes((value for p in points for value in (p.error, p.bound) if value is not None), *ERRORS)
    parts = [_frame(values, VALUES), _frame(errors, ERRORS), _steps(across, plot.by_window)]
    unit = f" in {plot.unit}" if plot.unit else ""
    parts.append(f'<text class="fn" x="{LEFT + 4}" y="{ERRORS[1] - 5}">|error|{unit}</text>')
    if plot.first_difference is not None:
        x = across(plot.first_difference)
        parts.append(f'<path class="fp" d="M{x} {VALUES[1]}V{VALUES[0]}M{x} {ERRORS[1]}V{ERRORS[0]}"/>')
    parts += [f'<path class="fk" d="M{across(skip)} {VALUES[1]}V{VALUES[0]}"/>' for skip in skipped]
    for name, series in zip(CLASSES, plot.series, strict=False):
        parts.append(f'<g class="{name}">{_series(series, plot.bounded, across, values, errors)}</g>')
    return Markup("".join(parts))


def _frame(axis: Axis, span: tuple[int, int]) -> str:
    """Grid lines and labels of a panel."""
    lines = "".join(f"M{LEFT} {axis(value)}H{RIGHT}" for value, _ in axis.ticks)
    labels = "".join(f'<text x="{LEFT - 6}" y="{axis(value) + 3}">{label}</text>' for value, label in axis.ticks)
    spine = f'<path class="fs" d="M{LEFT} {span[1]}V{span[0]}"/>'
    return f'<path class="fg" d="{lines}"/><g class="fy">{labels}</g>{spine}'


def _steps(across: Axis, by_window: bool) -> str:
    labels = "".join(f'<text x="{across(value)}" y="183">{label}</text>' for value, label in across.ticks)
    noun = "window" if by_window else "step"
    return f'<g class="fx">{labels}</g><text class="fn end" x="{RIGHT}" y="{VALUES[0] + 12}">{noun} →</text>'


def _series(series: Series, bounded: bool, across: Axis, values: Axis, errors: Axis) -> str:
    expected = _line(across, values, ((p.at, p.expected) for p in series.points))
    limits = ((p.at, p.bound) for p in series.points if bounded)
    bound = _line(across, lambda v: errors(exponent(v)), limits)
    observed, lost = _dots(across, values, VALUES[1], ((p.at, p.observed) for p in series.points))
    off, far = _dots(across, lambda v: errors(exponent(v)), ERRORS[1], ((p.at, p.error) for p in series.points))
    paths = (("fe", expected), ("fb", bound), ("fo", observed + off), ("fw", lost + far))
    return "".join(f'<path class="{name}" d="{path}"/>' for name, path in paths if path)


def _line(across: Axis, up: Callable[[float], int], points: Iterable[tuple[int, float | None]]) -> str:
    """A line through the finite points, broken where there is none."""
    path, open_ = [], False
    for at, value in points:
        drawn = value is not None and math.isfinite(value)
        if drawn and value is not None:
            path.append(f"{'L' if open_ else 'M'}{across(at)} {up(value)}")
        open_ = drawn
    return "".join(path)


def _dots(
    across: Axis, up: Callable[[float], int], top: int, points: Iterable[tuple[int, float | None]]
) -> tuple[str, str]:
    """A dot a finite value; a cross at the `top` of the panel for each that is infinite or not a number."""
    dots, crosses = [], []
    for at, value in points:
        if value is None:
            continue
        if math.isfinite(value):
            dots.append(f"M{across(at)} {up(value)}h0")
        else:
            crosses.append(f"M{across(at) - 3} {top}l6 6m0-6l-6 6")
    return "".join(dots), "".join(crosses)
