"""The exercise's learning rates as a figure: which converge, oscillate and diverge, and where exactly that changes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from markupsafe import Markup

from conformance.oracle.learning_rate import (
    Batches,
    crossings,
    diverges_from,
    factors,
    oscillates_from,
    outcome,
    settled,
)
from conformance.workloads.workload import as_rational

from .scales import Axis, linear
from .text import number

RATES = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256)
HEIGHT = 210
LEFT, RIGHT, TOP, FOOT = 34, 352, 30, 178
_TONES = {"converging": "good", "oscillating": "doubt", "diverging": "bad"}
# The ends of the axis of rates: a little space on both sides of them.
_LEAST, _MOST = 0.0007, 0.37
_POINTS = 81


@dataclass(frozen=True)
class Threshold:
    """Where one outcome gives way to another; ``exact`` says it as a fraction where it is one."""

    rate: float
    exact: str | None


def thresholds(batches: Batches) -> tuple[Threshold, Threshold]:
    """Where steps begin to go too far, and where nothing settles any more."""
    low, high = diverges_from(batches)
    first = oscillates_from(batches)
    return (
        Threshold(float(first), str(first)),
        Threshold(float(low), str(low) if low == high else None),
    )


def settling(batches: Batches) -> Markup:
    """The weights that training ends with, or goes through for ever, at each of :data:`RATES`."""
    cycles = {rate: _cycle(batches, rate) for rate in RATES}
    up = linear((float(w) for cycle in cycles.values() for w in cycle), FOOT, TOP)
    parts = [
        _bands(batches),
        _rates(),
        _levels(up, [0.0, 1.0, 2.0, 4.0, 6.0]),
        f'<path class="wg" d="M{LEFT} {up(1)}H{RIGHT}"/>',
    ]
    for rate, cycle in cycles.items():
        x, tone = _across(rate), _TONES[outcome(batches, as_rational(rate))]
        if not cycle:
            parts.append(f'<path class="wx" d="M{x} {FOOT - 8}V{TOP + 4}m-4 5l4-5l4 5"/>')
            continue
        weights = [up(float(weight)) for weight in cycle]
        dots = "".join(f"M{x} {y}h0" for y in weights)
        parts.append(f'<path class="wl" d="M{x} {min(weights)}V{max(weights)}"/><path class="wd w-{tone}" d="{dots}"/>')
    return Markup("".join(parts))


def factor(batches: Batches) -> Markup:
    """What one step on a single batch multiplies the error with, by the learning rate."""
    # From below -3, at which errors triple, to above 1, which is for no learning rate at all.
    up = Axis(-3.2, 1.2, FOOT, TOP, ())
    curve = [_factor(batches, _LEAST * (_MOST / _LEAST) ** (i / (_POINTS - 1))) for i in range(_POINTS)]
    line = "".join(
        f"{'L' if i else 'M'}{_across(rate)} {up(value)}" for i, (rate, value) in enumerate(curve) if value >= up.low
    )
    parts = [_bands(batches), _rates(), _levels(up, [1.0, 0.0, -1.0, -2.0, -3.0])]
    parts.append(f'<path class="wg" d="M{LEFT} {up(1)}H{RIGHT}M{LEFT} {up(-1)}H{RIGHT}"/><path class="wc" d="{line}"/>')
    for rate in RATES:
        _, value = _factor(batches, rate)
        tone = _TONES[outcome(batches, as_rational(rate))]
        parts.append(f'<path class="wd w-{tone}" d="M{_across(rate)} {up(value)}h0"/>')
    return Markup("".join(parts))


def _factor(batches: Batches, rate: float) -> tuple[float, float]:
    [value] = factors(batches, as_rational(rate))
    return rate, float(value)


def _cycle(batches: Batches, rate: float) -> Sequence[Fraction]:
    return () if outcome(batches, as_rational(rate)) == "diverging" else settled(batches, as_rational(rate))


def _across(rate: float) -> int:
    share = math.log(rate / _LEAST) / math.log(_MOST / _LEAST)
    return round(LEFT + min(max(share, 0), 1) * (RIGHT - LEFT))


def _bands(batches: Batches) -> str:
    """The three outcomes as areas, and where they meet as lines."""
    first, last = thresholds(batches)
    # Above it, further crossings would be further bands; those of the exercise lie outside of the figure.
    assert all(float(low) > _MOST for low, _ in (crossings(batches)[1:] if len(batches) > 1 else []))
    edges = [LEFT, _across(first.rate), _across(last.rate), RIGHT]
    parts = []
    for (name, tone), start, end in zip(_TONES.items(), edges[:-1], edges[1:], strict=True):
        parts.append(
            f'<rect class="b-{tone}" x="{start}" y="{TOP - 4}" width="{end - start}" height="{FOOT - TOP + 10}"/>'
        )
        parts.append(
            f'<text class="wn" x="{(start + end) // 2}" y="{TOP - 20 if tone == "doubt" else TOP - 8}">{name}</text>'
        )
    for threshold, edge in zip((first, last), edges[1:], strict=False):
        label = threshold.exact or number(threshold.rate, 4)
        parts.append(f'<path class="wt" d="M{edge} {TOP - 4}V{FOOT + 6}"/>')
        parts.append(f'<text class="wv" x="{edge}" y="{HEIGHT - 2}">{label}</text>')
    return "".join(parts)


def _rates() -> str:
    labels = "".join(f'<text x="{_across(rate)}" y="{FOOT + 16}">{number(rate).lstrip("0")}</text>' for rate in RATES)
    return f'<g class="fx">{labels}</g>'


def _levels(up: Axis, values: Sequence[float]) -> str:
    shown = [value for value in values if up.low <= value <= up.high]
    lines = "".join(f"M{LEFT} {up(value)}H{RIGHT}" for value in shown)
    labels = "".join(f'<text x="{LEFT - 5}" y="{up(value) + 3}">{number(value)}</text>' for value in shown)
    return f'<path class="fg" d="{lines}"/><g class="fy">{labels}</g>'
