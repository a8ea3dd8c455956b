"""Small static figures in SVG: expected and observed values above, signed errors on a symmetric log scale below, over
one axis of steps.

They are drawn here and not in the browser, so that they show without JavaScript and on paper. Colours are CSS classes
(`s0` to `s5` for the series), so that the page can theme them for light and dark. A dot is a line of length zero with
round caps, and points are written relative to each other: the shortest way, and a report has thousands.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from markupsafe import Markup

from .scales import Axis, counting, linear, symmetric
from .series import Plot, Series

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
