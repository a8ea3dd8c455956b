"""The notebook's gradient descents as figures: weights on their way to 5 3 2 1, and how fast each way gets there."""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup

from conformance.oracle.float_descents import Descents, distance
from conformance.workloads.multivariate import COEFFICIENTS

from .figure import CLASSES
from .scales import Axis, counting, linear
from .text import power_of_ten

WIDTH, HEIGHT = 360, 170
LEFT, RIGHT, TOP, FOOT = 40, 350, 8, 142
# Epochs from one point of a line, and from one dot, to the next.
_EVERY, _DOT_EVERY = 5, 20


def weights(descents: Descents) -> Markup:
    """Every weight by the epoch, under ordinary gradient descent, and the coefficients as dashed lines."""
    track = descents.ordinary
    across, up = _epochs(len(track) - 1), linear((w for ws in track for w in ws), FOOT, TOP)
    goals = "".join(f"M{LEFT} {up(goal)}H{RIGHT}" for goal in COEFFICIENTS)
    lines = [
        f'<g class="{name}"><path class="fe" d="{_line(across, up, [ws[index] for ws in track])}"/></g>'
        for index, name in zip(range(len(COEFFICIENTS)), CLASSES, strict=False)
    ]
    return Markup(_frame(across, up) + f'<path class="wg" d="{goals}"/>' + "".join(lines))


def distances(descents: Descents) -> Markup:
    """How far the weights are from 5 3 2 1, by the epoch: ordinary (line), accumulated (dots), mini-batch (line)."""
    tracks = [
        [distance(ws) for ws in track] for track in (descents.ordinary, descents.accumulated, descents.mini_batch)
    ]
    low = math.floor(min(math.log10(value) for track in tracks for value in track))
    ticks = tuple((float(power), power_of_ten(power)) for power in range(low + low % 2, 2, 2))
    across, up = _epochs(len(tracks[0]) - 1), Axis(low - 0.2, 1.0, FOOT, TOP, ticks)
    ordinary, accumulated, mini = ([math.log10(value) for value in track] for track in tracks)
    dots = "".join(f"M{across(e)} {up(accumulated[e])}h0" for e in range(0, len(accumulated), _DOT_EVERY))
    return Markup(
        _frame(across, up)
        + f'<g class="s0"><path class="fe" d="{_line(across, up, ordinary)}"/></g>'
        + f'<g class="s1"><path class="fo" d="{dots}"/></g>'
        + f'<g class="s2"><path class="fe" d="{_line(across, up, mini)}"/></g>'
    )


def _epochs(last: int) -> Axis:
    return counting(last, LEFT + 2, RIGHT - 4)


def _line(across: Axis, up: Axis, values: Sequence[float]) -> str:
    return "".join(f"{'L' if at else 'M'}{across(at)} {up(values[at])}" for at in range(0, len(values), _EVERY))


def _frame(across: Axis, up: Axis) -> str:
    lines = "".join(f"M{LEFT} {up(value)}H{RIGHT}" for value, _ in up.ticks)
    levels = "".join(f'<text x="{LEFT - 5}" y="{up(value) + 3}">{label}</text>' for value, label in up.ticks)
    epochs = "".join(f'<text x="{across(value)}" y="{FOOT + 13}">{label}</text>' for value, label in across.ticks)
    name = f'<text class="fn end" x="{RIGHT}" y="{HEIGHT - 3}">epoch →</text>'
    return f'<path class="fg" d="{lines}"/><g class="fy">{levels}</g><g class="fx">{epochs}</g>{name}'
