"""Numbers that know how far any correct floating-point evaluation may be from them.

A result that is multiplied out is a sum of terms. If each of them takes part in at most n roundings, an evaluation errs
by at most gamma_n = n u / (1 - n u) times the sum of the terms' magnitudes (Higham, ASNA 2nd ed., section 3.1), in
every order of summation and in factored and expanded forms alike, and by a quantum for each operation that underflows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from conformance.oracle.affine import Enclosure, square_root
from conformance.oracle.rounding import gamma, nearest
from conformance.workloads.precision import FP32, FP64, Format


@dataclass(frozen=True)
class Number:
    """An exact value, the sum of the magnitudes of all terms that it is the sum of, and the roundings of each term.

    An operation counts as two roundings: its own, and one for its other operand or for another form of the expression,
    such as a product with 1 / n where this one divides by n.
    """

    value: Fraction
    size: Fraction
    roundings: int = 0

    @classmethod
    def of(cls, value: float | Fraction) -> Number:
        exact = Fraction(value)
        return cls(exact, abs(exact))

    def __add__(self, other: Number) -> Number:
        return Number(self.value + other.value, self.size + other.size, max(self.roundings, other.roundings) + 2)

    def __sub__(self, other: Number) -> Number:
        return self + Number(-other.value, other.size, other.roundings)

    def __mul__(self, other: Number | Fraction | int) -> Number:
        factor = other if isinstance(other, Number) else Number.of(other)
        return Number(self.value * factor.value, self.size * factor.size, self.roundings + factor.roundings + 2)

    __rmul__ = __mul__

    def __truediv__(self, divisor: int) -> Number:
        return self * Fraction(1, divisor)

    def __abs__(self) -> Number:
        return Number(abs(self.value), self.size, self.roundings)

    def __floor__(self) -> Number:
        return Number(Fraction(math.floor(self.value)), Fraction(0))

    def __round__(self, places: int) -> Number:
        """The double that is nearest to the rounded number."""
        return Number(nearest(round(self.value, places), FP64), Fraction(0))

    def root(self) -> Number:
        """The square root, of which |sqrt(a) - sqrt(b)| <= |a - b| / sqrt(b). Raises ZeroDivisionError for zero."""
        low, high = square_root(self.value)
        return Number((low + high) / 2, self.size / low, self.roundings + 2)

    def enclosure(self, format: Format) -> Enclosure:
        """The number, and the radius that rounding in ``format`` explains.

        A quantum of fp32 for each underflow allows for what later operations make of one in fp64.
        """
        radius = gamma(self.roundings, format) * self.size + self.roundings * FP32.quantum
        return Enclosure((self.value,), (radius,))


ZERO = Number.of(0)
