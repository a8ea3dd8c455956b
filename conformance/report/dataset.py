"""The notebook's data set as figures: histograms of its columns, and all five dimensions in one scatter plot."""

from __future__ import annotations

import math
from collections import defaultdict
from itertools import product

import numpy as np
import numpy.typing as npt
from markupsafe import Markup

from conformance.workloads.distribution import Columns

WIDTH, HEIGHT = 180, 100
BIN = 0.25
#: The notebook's view of the scatter plot, in degrees.
ELEVATION, AZIMUTH = math.radians(48), math.radians(134)
SCATTER, SPAN = (360, 300), 80.0
TINTS, SIZES = 6, 4

Floats = npt.NDArray[np.float64]


def histogram(column: Columns, mean: float) -> Markup:
    """The column's values in bins, and the normal density around ``mean`` that they should follow."""
    low, high = mean - 4, mean + 4
    edges = np.arange(low, high + BIN / 2, BIN)
    counts, _ = np.histogram(column, edges)
    foot, density = HEIGHT - 14, len(column) * BIN / math.sqrt(2 * math.pi)
    scale = (foot - 6) / max(int(counts.max()), density)

    def across(value: float) -> float:
        return round(6 + (value - low) / (high - low) * (WIDTH - 12), 1)

    width = round((WIDTH - 12) * BIN / (high - low) - 0.6, 1)
    bars = "".join(
        f"M{across(edge)} {foot}v{-round(count * scale, 1)}h{width}V{foot}"
        for edge, count in zip(edges.tolist(), counts.tolist(), strict=False)
        if count
    )
    sigmas = np.arange(-4, 4.1, 0.2).tolist()
    heights = [round(foot - density * scale * math.exp(-(z**2) / 2), 1) for z in sigmas]
    curve = "L".join(f"{across(mean + z)} {height}" for z, height in zip(sigmas, heights, strict=True))
    ticks = "".join(f'<text x="{across(mean + k)}" y="{HEIGHT - 3}">{mean + k:g}</text>' for k in (-3, 0, 3))
    return Markup(
        f'<path class="hb" d="{bars}"/><path class="hc" d="M{curve}"/>'
        f'<path class="fs" d="M4 {foot}H{WIDTH - 4}"/><g class="fx">{ticks}</g>'
    )


def scatter(columns: Columns, targets: Floats) -> Markup:
    """Three columns in space, the fourth as the size of a dot, the target as its tint (class ``t0`` to ``t5``)."""
    centered = [_spread(column) for column in columns[:3]]
    across, up = _projected(*centered)
    sizes, tints = _ranked(columns[3], SIZES), _ranked(targets, TINTS)
    dots: dict[tuple[int, int], list[str]] = defaultdict(list)
    for x, y, size, tint in zip(across.tolist(), up.tolist(), sizes, tints, strict=True):
        dots[tint, size].append(f"M{round(x)} {round(y)}h0")
    paths = (f'<path class="t{tint} z{size}" d="{"".join(found)}"/>' for (tint, size), found in sorted(dots.items()))
    return Markup(_box() + "".join(paths))


def _spread(values: Floats) -> Floats:
    """Onto [-1, 1]."""
    low, high = values.min(), values.max()
    return np.asarray(2 * (values - low) / (high - low) - 1)


def _ranked(values: Floats, groups: int) -> list[int]:
    """Which of equally large groups each value is in, from the smallest on."""
    ranks = np.argsort(np.argsort(values))
    return [int(rank) for rank in ranks * groups // len(values)]


def _projected(x: Floats, y: Floats, z: Floats) -> tuple[Floats, Floats]:
    """Pixels, seen from the notebook's elevation and azimuth, in parallel projection."""
    sine, cosine = math.sin(AZIMUTH), math.cos(AZIMUTH)
    across = -sine * x + cosine * y
    up = -math.sin(ELEVATION) * (cosine * x + sine * y) + math.cos(ELEVATION) * z
    return SCATTER[0] / 2 + SPAN * across, SCATTER[1] / 2 - SPAN * up


def _box() -> str:
    """The edges of the cube around all dots, and the names of its axes, each at the outermost of its edges."""
    corners = list(product((-1.0, 1.0), repeat=3))
    lines, names = [], []
    for axis in range(3):
        edges = [(corner, _moved(corner, axis, 1.0)) for corner in corners if corner[axis] < 0]
        lines += ["M{} {}L{} {}".format(*_pixel(start), *_pixel(end)) for start, end in edges]
        middles = [_pixel(_moved(corner, axis, 0.0), 1.1) for corner, _ in edges]
        x, y = max(middles, key=lambda at: math.dist(at, (SCATTER[0] / 2, SCATTER[1] / 2)))
        names.append(f'<text x="{x}" y="{y + 3}">x{axis}</text>')
    return f'<path class="fg" d="{"".join(lines)}"/><g class="fx">{"".join(names)}</g>'


def _moved(corner: tuple[float, ...], axis: int, value: float) -> tuple[float, ...]:
    return (*corner[:axis], value, *corner[axis + 1 :])


def _pixel(at: tuple[float, ...], outwards: float = 1.0) -> tuple[int, int]:
    across, up = _projected(*(np.array(outwards * value) for value in at))
    return round(float(across)), round(float(up))
