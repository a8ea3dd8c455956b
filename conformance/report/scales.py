"""Axes of a figure: the pixel of each value, and round ticks."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from .text import number, power_of_ten

LARGEST = 1e300  # beyond it, the span of an axis could overflow


@dataclass(frozen=True)
class Axis:
    """Maps values onto pixels, `low` to `start` and `high` to `end`, with labelled ticks."""

    low: float
    high: float
    start: float
    end: float
    ticks: tuple[tuple[float, str], ...]

    def __call__(self, value: float) -> int:
        """The pixel of a finite value. One outside of the axis is drawn at its edge."""
        share = (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start))


def linear(values: Iterable[float], start: float, end: float) -> Axis:
    """An axis over those of `values` that can be drawn, with about five round ticks."""
    finite = [value for value in values if abs(value) < LARGEST] or [0.0]
    low, high = min(finite), max(finite)
    if high - low <= max(1e-12 * max(abs(low), abs(high)), 1 / LARGEST):
        middle, half = (low + high) / 2, max(abs(low), 1.0) * 0.5
        low, high = middle - half, middle + half
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


def magnitudes(values: Iterable[float], start: float, end: float) -> Axis:
    """An axis for |error| in powers of ten, with zero at its foot. It maps the `exponent` of a value."""
    exponents = [exponent(value) for value in values if value and math.isfinite(value)]
    if not exponents:
        middle = (start + end) / 2
        return Axis(0.0, 1.0, middle, middle, ((0.0, "0"),))
    low, high = math.floor(min(exponents)), math.ceil(max(exponents))
    high = max(high, low + 1)
    foot = low - 0.4 * (high - low)
    shown = sorted({low, high} | ({(low + high) // 2} if high - low >= 4 else set()))
    ticks = ((foot, "0"), *((float(i), power_of_ten(i)) for i in shown))
    return Axis(foot, float(high), start, end, ticks)


def exponent(value: float) -> float:
    """log10 |value|; minus infinity for zero."""
    return math.log10(abs(value)) if value else -math.inf


def _round_step(rough: float) -> float:
    """The next number of the form 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
