"""A curve over the steps, as SVG."""

from __future__ import annotations

from markupsafe import Markup

from conformance.report.figure import LEFT, RIGHT, WIDTH, counting, dots, frame, line, linear, steps
from conformance.watch.judging.history import Curve

HEIGHT = 130
_SPAN = (108, 8)
_MOST_DOTS = 64

__all__ = ["HEIGHT", "WIDTH", "drawing"]


def drawing(curve: Curve) -> Markup:
    """The inside of an `<svg>` of this width and height. What is not finite leaves a gap, with a cross at the top."""
    across = counting(max((step for step, _ in curve.points), default=0), LEFT + 6, RIGHT - 4)
    up = linear([value for _, value in curve.points], *_SPAN)
    path = line(across, up, curve.points)
    single, missing = dots(across, up, _SPAN[1], curve.points)
    if len(curve.points) > _MOST_DOTS:
        single = ""
    paths = (("fe", path), ("fo", single), ("fw", missing))
    drawn = "".join(f'<path class="{name}" d="{shape}"/>' for name, shape in paths if shape)
    return Markup(f'{frame(up, _SPAN)}{steps(across, HEIGHT - 6)}<g class="s0">{drawn}</g>')
