"""Affine arithmetic: vectors of numbers with bounded rounding errors.

Each entry is ``center + sum_k noise[k] * eps_k`` with every ``eps_k`` in [-1, 1]. Entries share noise symbols, so both
terms of ``w - lr * (A w)`` carry the same error, and a contracting iteration stays tight over hundreds of steps, where
interval arithmetic would blow up (de Figueiredo and Stolfi, "Affine arithmetic: concepts and applications", Numerical
Algorithms 37, 2004). Centers are exact rationals. The floating-point errors of the noise coefficients are bounded and
added as further noise, so an enclosure is rigorous.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import inf, isfinite, isqrt, lcm, nextafter
from operator import add, mul

import numpy as np
import numpy.typing as npt

from conformance.workloads.workload import Vector

Noise = npt.NDArray[np.float64]
Interval = tuple[Fraction, Fraction]
#: Infinity for two different exact values.
Gap = Fraction | float

#: Centers with longer denominators are rounded to this grid, and the rounding becomes noise: hundreds of exact steps
#: over real-valued data would otherwise cost megabytes a number.
GRID_BITS = 600
_LONGEST_DENOMINATOR = 2 ** (2 * GRID_BITS) - 1
_FLOAT_ROUNDOFF = 2.0**-53


def _overflowing() -> np.errstate:
    """Lets noise beyond a double become infinite or NaN without a warning; then the radius raises."""
    return np.errstate(over="ignore", invalid="ignore")


class Unbounded(ArithmeticError):
    """No finite rounding-error bound exists for this computation in this precision."""


@dataclass(frozen=True)
class Enclosure:
    """A closed box: entry ``i`` lies within ``radius[i]`` of ``center[i]``. An exact value has radius zero."""

    center: Vector
    radius: Vector

    @property
    def exact(self) -> bool:
        return not any(self.radius)

    def holds(self, values: Sequence[Fraction]) -> bool:
        """Whether the point ``values`` lies in the box."""
        return all(abs(v - c) <= r for v, c, r in zip(values, self.center, self.radius, strict=True))

    def gap(self, other: Enclosure) -> Gap:
        """The distance of two boxes in multiples of their size: the largest |c - c'| / (r + r') of all entries.

        Above 1, no point lies in both boxes.
        """
        entries = zip(self.center, self.radius, other.center, other.radius, strict=True)
        gaps = (abs(c - d) / (r + s) if r + s else inf for c, r, d, s in entries if c != d)
        return max(gaps, default=Fraction(0))


class Affine:
    """A vector of ``n`` affine forms: ``center`` of length n, ``noise`` of shape (n, symbols)."""

    def __init__(self, center: Sequence[Fraction], noise: Noise, symbols: Symbols) -> None:
        self.center = tuple(center)
        self.noise = noise
        self.symbols = symbols

    def __len__(self) -> int:
        return len(self.center)

    @cached_property
    def exact(self) -> bool:
        return not self.noise.any()

    @cached_property
    def radius(self) -> Vector:
        """An upper bound of each entry's distance from its center."""
        if not self.noise.size:
            return (Fraction(0),) * len(self)
        with _overflowing():
            sums = np.abs(self.noise).sum(axis=1).tolist()
        if not all(map(isfinite, sums)):
            raise Unbounded("the rounding errors outgrow every format")
        # Twice the largest rounding error of a sum of so many floats.
        inflation = 1 + Fraction(self.noise.shape[1] + 2, 2**52)
        return tuple(inflation * Fraction(value) for value in sums)

    @cached_property
    def magnitude(self) -> Vector:
        """An upper bound of each entry's absolute value."""
        return tuple(map(add, map(abs, self.center), self.radius))

    def enclosure(self) -> Enclosure:
        return Enclosure(self.center, self.radius)

    def interval(self, index: int) -> Interval:
        radius = self.radius[index]
        return self.center[index] - radius, self.center[index] + radius

    def widen(self, radii: Sequence[Fraction]) -> Affine:
        """The same vector with a new, independent error of up to ``radii[i]`` in entry ``i``."""
        return self._new(self.center, self.noise, [_float_up(radius) for radius in radii])

    def transform(self, rows: Sequence[Sequence[Fraction]], offset: Sequence[Fraction]) -> Affine:
        """``rows @ self + offset``."""
        center = [dot(row, self.center, constant) for row, constant in zip(rows, offset, strict=True)]
        if self.exact:
            return self._new(center, self.symbols.none(len(center)))
        matrix = np.array([[float(a) for a in row] for row in rows])
        with _overflowing():
            noise = matrix @ self.noise
            spread = (np.abs(matrix) @ np.abs(self.noise)).sum(axis=1)
        return self._new(center, noise, self._slack(spread, len(self) + 2))

    def scaled(self, factor: Fraction) -> Affine:
        """``factor * self``."""
        center = [factor * c for c in self.center]
        if self.exact:
            return self._new(center, self.symbols.none(len(self)))
        with _overflowing():
            noise = float(factor) * self.noise
            spread = np.abs(noise).sum(axis=1)
        return self._new(center, noise, self._slack(spread, 3))

    def where(self, kept: Sequence[bool]) -> Affine:
        """``self`` with zeros in the entries that are not ``kept``."""
        center = [c if keep else Fraction(0) for c, keep in zip(self.center, kept, strict=True)]
        return Affine(center, np.where(np.array(kept)[:, None], self.noise, 0.0), self.symbols)

    def plus(self, other: Affine) -> Affine:
        """``self + other``, entry by entry; shared errors cancel or add up as they really do."""
        center = list(map(add, self.center, other.center))
        if self.exact and other.exact:
            return self._new(center, self.symbols.none(len(self)))
        width = max(self.noise.shape[1], other.noise.shape[1])
        left, right = _padded(self.noise, width), _padded(other.noise, width)
        with _overflowing():
            spread = (np.abs(left) + np.abs(right)).sum(axis=1)
            noise = left + right
        return self._new(center, noise, self._slack(spread, 1))

    def __add__(self, other: Affine) -> Affine:
        return self.plus(other)

    def __mul__(self, other: Affine) -> Affine:
        """The product, entry by entry; the product of both errors becomes a new error."""
        center = list(map(mul, self.center, other.center))
        if self.exact and other.exact:
            return self._new(center, self.symbols.none(len(self)))
        width = max(self.noise.shape[1], other.noise.shape[1])
        factors = (np.array([[float(c)] for c in vector.center]) for vector in (other, self))
        with _overflowing():
            left, right = map(mul, factors, (_padded(self.noise, width), _padded(other.noise, width)))
            spread = (np.abs(left) + np.abs(right)).sum(axis=1)
            noise = left + right
        of_both = map(_float_up, map(mul, self.radius, other.radius))
        return self._new(center, noise, list(map(add, self._slack(spread, 3), of_both)))

    def entries(self) -> list[Affine]:
        """Each entry as a separate vector."""
        return [Affine([c], self.noise[i : i + 1], self.symbols) for i, c in enumerate(self.center)]

    def scaled_by_interval(self, low: Fraction, high: Fraction) -> Affine:
        """``c * self`` for an unknown c in [low, high], the same in all entries."""
        middle, half = (low + high) / 2, (high - low) / 2
        return self.scaled(middle).widen([half * size for size in self.magnitude])

    def clamped(self, threshold: Fraction) -> Affine:
        """Every entry clamped to [-threshold, threshold]. An entry that surely lies inside keeps its noise."""
        if self.exact:
            return self._new([max(-threshold, min(threshold, c)) for c in self.center], self.noise)
        center, noise, radii = list(self.center), self.noise.copy(), []
        for index in range(len(self)):
            low, high = self.interval(index)
            if -threshold <= low and high <= threshold:
                radii.append(0.0)
                continue
            low, high = (max(-threshold, min(threshold, bound)) for bound in (low, high))
            noise[index] = 0.0
            center[index] = (low + high) / 2
            radii.append(_float_up((high - low) / 2))
        return self._new(center, noise, radii)

    def _slack(self, spread: Noise, operations: int) -> list[float]:
        """The largest rounding errors of ``operations`` in a row on noise coefficients of magnitudes ``spread``."""
        return [value * (operations + 1) * 2 * _FLOAT_ROUNDOFF + 5e-324 for value in spread.tolist()]

    def _new(self, center: Sequence[Fraction], noise: Noise, fresh: Sequence[float] = ()) -> Affine:
        """A vector with ``noise`` and a new symbol for each error in ``fresh``; long centers are put on the grid."""
        if any(value.denominator > _LONGEST_DENOMINATOR for value in center):
            center, rounded = zip(*map(_on_grid, center), strict=True)
            fresh = list(map(add, fresh, rounded)) if fresh else rounded
        if any(fresh):
            noise = self.symbols.extended(noise, fresh)
        return Affine(center, noise, self.symbols)


class Symbols:
    """Hands out the noise symbols of one computation."""

    def __init__(self) -> None:
        self._count = 0

    def none(self, size: int) -> Noise:
        return np.zeros((size, 0))

    def exactly(self, values: Sequence[Fraction]) -> Affine:
        return Affine(values, self.none(len(values)), self)

    def between(self, bounds: Sequence[Interval]) -> Affine:
        """Independent entries, each in its own interval."""
        centers = [(low + high) / 2 for low, high in bounds]
        return self.exactly(centers).widen([(high - low) / 2 for low, high in bounds])

    def joined(self, entries: Sequence[Affine]) -> Affine:
        """One vector with the entries of all of these."""
        width = max(one.noise.shape[1] for one in entries)
        noise = np.concatenate([_padded(one.noise, width) for one in entries])
        return Affine([c for one in entries for c in one.center], noise, self)

    def extended(self, noise: Noise, radii: Sequence[float]) -> Noise:
        """``noise`` with one new symbol for each entry."""
        wide = _padded(noise, self._count + len(radii))
        wide[np.arange(len(radii)), self._count + np.arange(len(radii))] = radii
        self._count += len(radii)
        return wide


def dot(row: Sequence[Fraction], column: Sequence[Fraction], constant: Fraction) -> Fraction:
    """``sum_i row[i] column[i] + constant``, reduced to lowest terms only at the end."""
    terms = [constant.as_integer_ratio()]
    for a, c in zip(row, column, strict=True):
        (p, q), (r, s) = a.as_integer_ratio(), c.as_integer_ratio()
        terms.append((p * r, q * s))
    unit = lcm(*[denominator for _, denominator in terms])
    return Fraction(sum([numerator * (unit // denominator) for numerator, denominator in terms]), unit)


def _on_grid(value: Fraction) -> tuple[Fraction, float]:
    """``value``, rounded to the grid if its denominator is too long, and a bound of the error."""
    if value.denominator <= _LONGEST_DENOMINATOR:
        return value, 0.0
    return Fraction(round(value * 2**GRID_BITS), 2**GRID_BITS), 2.0**-GRID_BITS


def square_root(value: Fraction) -> Interval:
    """Two rationals around the root of ``value`` >= 0, relatively 2^-250 or less apart; equal if it is rational."""
    root = isqrt(value.numerator), isqrt(value.denominator)
    if root[0] ** 2 == value.numerator and root[1] ** 2 == value.denominator:
        return Fraction(*root), Fraction(*root)
    shift = 256 + max(0, value.denominator.bit_length() - value.numerator.bit_length()) // 2
    low = isqrt((value.numerator << 2 * shift) // value.denominator)
    return Fraction(low, 1 << shift), Fraction(low + 1, 1 << shift)


def _padded(noise: Noise, width: int) -> Noise:
    if noise.shape[1] == width:
        return noise
    wide = np.zeros((noise.shape[0], width))
    wide[:, : noise.shape[1]] = noise
    return wide


def _float_up(value: Fraction) -> float:
    """A float that is not below ``value`` >= 0."""
    try:
        nearest = float(value)
    except OverflowError:
        raise Unbounded("the rounding errors outgrow every format") from None
    numerator, denominator = nearest.as_integer_ratio()
    return nearest if numerator * value.denominator >= value.numerator * denominator else nextafter(nearest, inf)
