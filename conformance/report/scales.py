"""Axes of a figure: the pixel of each value, and round ticks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from .text import number, power_of_ten

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
