"""A curve over the steps, as SVG."""

from __future__ import annotations

import math

from markupsafe import Markup

from conformance.report.scales import counting, linear
from conformance.watch.judging.history import Curve

WIDTH, HEIGHT = 360, 130
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 350, 8, 108


def drawing(curve: Curve) -> Markup:
    """The inside of an `<svg>` of this width and height. What is not finite leaves a gap."""
    across = counting(max((step for step, _ in curve.points), default=0), _LEFT + 6, _RIGHT - 4)
    up = linear([value for _, value in curve.points], _BOTTOM, _TOP)
    grid = "".join(f"M{_LEFT} {up(value)}H{_RIGHT}" for value, _ in up.ticks)
    labels = "".join(f'<text x="{_LEFT - 6}" y="{up(value) + 3}">{label}</text>' for value, label in up.ticks)
    steps = "".join(f'<text x="{across(value)}" y="{HEIGHT - 6}">{label}</text>' for value, label in across.ticks)
    path, is_on = [], False
    for step, value in curve.points:
        if math.isfinite(value):
            path.append(f"{'L' if is_on else 'M'}{across(step)} {up(value)}")
        is_on = math.isfinite(value)
    return Markup(
        f'<path class="fg" d="{grid}"/><g class="fy">{labels}</g><g class="fx">{steps}</g>'
        f'<g class="s0"><path class="fe" d="{"".join(path)}"/></g>'
    )
