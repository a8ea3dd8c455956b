"""The loss of one accumulation window as a quadratic form in the folded weights of a model, summed in integers.

Fractions are slow for a thousand samples, so the samples of a window get a common denominator once, and the
coefficients of all faults use the same products. Rational types in C are slower here: gmpy2's mpq and python-flint's
fmpq take 2x the time for 24 samples, and 13x for 1000.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from operator import mul

from conformance.oracle.affine import dot
from conformance.oracle.rounding import integers
from conformance.workloads.layout import Window
from conformance.workloads.model import Model
from conformance.workloads.workload import Vector

Column = list[int]
ONE = Fraction(1)


@dataclass(frozen=True)
class Table:
    """The samples of a window in units of 1 / ``unit``; ``rows``: the model's rows."""

    rows: list[list[int]]
    targets: Column
    weights: Column
    unit: int

    @cached_property
    def products(self) -> list[list[Column]]:
        """The products of each feature i with features i, i + 1, ..., and last with the target."""
        columns = [*map(list, zip(*self.rows, strict=True)), self.targets]
        return [[list(map(mul, one, other)) for other in columns[i:]] for i, one in enumerate(columns[:-1])]


@lru_cache(maxsize=64)
def tabulated(window: Window, model: Model) -> Table:
    """The window's samples over their common denominator."""
    table, unit = integers([*model.row(sample.x, ONE), sample.y, sample.weight] for sample in window.batch)
    return Table([row[:-2] for row in table], [row[-2] for row in table], [row[-1] for row in table], unit)


@dataclass(frozen=True)
class NormalForm:
    """``sum_i c_i (x_i . w - y_i)^2`` for the rows x_i and the folded weights w, with the magnitudes for the rounding
    errors of its gradient.

    ``factors``: the c_i, in units of 1 / ``unit``.
    """

    model: Model
    table: Table
    factors: Column
    unit: int

    @classmethod
    def of(cls, window: Window, coefficients: Vector, model: Model) -> NormalForm:
        [factors], unit = integers([coefficients])
        return cls(model, tabulated(window, model), factors, unit)

    @cached_property
    def matrix(self) -> tuple[Vector, ...]:
        """A = 2 sum_i c_i x_i x_i^T."""
        return _symmetric([[self._sum(column) for column in row[:-1]] for row in self.table.products])

    @cached_property
    def offset(self) -> Vector:
        """r = 2 sum_i c_i y_i x_i."""
        return tuple(self._sum(row[-1]) for row in self.table.products)

    @cached_property
    def matrix_magnitude(self) -> tuple[Vector, ...]:
        return _symmetric([[self._magnitude(column) for column in row[:-1]] for row in self.table.products])

    @cached_property
    def offset_magnitude(self) -> Vector:
        return tuple(self._magnitude(row[-1]) for row in self.table.products)

    @cached_property
    def row_magnitude(self) -> Vector:
        """sum_i abs(x_i), of all samples."""
        return tuple(Fraction(sum(map(abs, column)), self.table.unit) for column in zip(*self.table.rows, strict=True))

    @cached_property
    def error_magnitude(self) -> Vector:
        """2 sum_i abs(c_i x_i), and last 2 sum_i abs(c_i y_i)."""
        columns = [*zip(*self.table.rows, strict=True), self.table.targets]
        return tuple(self._magnitude([value * self.table.unit for value in column]) for column in columns)

    def gradient(self, weights: Vector) -> Vector:
        """The gradient in exact arithmetic."""
        folded = self.model.folded(weights)
        slopes = [dot(row, folded, -offset) for row, offset in zip(self.matrix, self.offset, strict=True)]
        return tuple(self.model.slopes(slopes, weights))

    def magnitude(self, sizes: Vector) -> Vector:
        """The sums of the magnitudes of all terms of each gradient entry, at weights of these magnitudes."""
        folded, rows = self.model.folded(sizes), zip(self.matrix_magnitude, self.offset_magnitude, strict=True)
        return tuple(self.model.slopes([dot(row, folded, offset) for row, offset in rows], sizes))

    def exposure(self, sizes: Vector) -> Vector:
        """The largest change of each gradient entry if every number between the weights and the entry changes by at
        most one unit, after the scalings."""
        model = self.model
        through = tuple(model.slopes(self.row_magnitude, sizes))
        if len(model.layers) == 1:
            return tuple(1 + one for one in through)
        # A hidden value is a factor of the error, and of the slopes, which have the error as a factor.
        error = dot(self.error_magnitude, [*model.folded(sizes), ONE], Fraction(0))
        return tuple((1 + sum(sizes)) * (1 + one + error) for one in through)

    def _sum(self, column: Column) -> Fraction:
        """``2 sum_i c_i column[i]`` for a column of products."""
        return Fraction(2 * sum(map(mul, self.factors, column)), self.unit * self.table.unit**2)

    def _magnitude(self, column: Column) -> Fraction:
        """``2 sum_i abs(c_i column[i])``."""
        return Fraction(2 * sum(map(abs, map(mul, self.factors, column))), self.unit * self.table.unit**2)


def _symmetric(upper: list[list[Fraction]]) -> tuple[Vector, ...]:
    """The symmetric matrix; ``upper[i]``: row i from its diagonal on."""
    size = range(len(upper))
    return tuple(tuple(upper[min(i, j)][abs(i - j)] for j in size) for i in size)
