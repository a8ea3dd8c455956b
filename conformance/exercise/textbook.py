"""The exercise done right: exact rationals, and how far any correct floating-point evaluation may be from them.

Each method of :class:`Textbook` is one decision that an answer can get wrong; :mod:`conformance.exercise.mistakes`
overrides one at a time. All gradients here are straight lines in the weight, ``rate * m + level``.

The bounds hold for every order of summation and for factored and expanded forms alike: an evaluation with at most n
roundings between an input and the result errs by at most gamma_n = n u / (1 - n u) times the sum of the magnitudes of
all its terms (Higham, ASNA 2nd ed., section 3.1), and by a quantum for each operation that underflows. Errors of
earlier iterations are carried along in affine arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from itertools import chain
from typing import Any

from conformance.oracle.affine import Affine, Enclosure, Symbols
from conformance.oracle.rounding import gamma
from conformance.workloads.precision import FP64, Format
from conformance.workloads.workload import as_rational

Point = tuple[Fraction, Fraction]
Batch = Sequence[Point]

#: Roundings of one term beside its sum: two products with x, the difference with y, the factor 2, the quotient by N,
#: that by the number of workers, the product with lr and the difference with m; and each constant's own.
_ROUNDINGS = 16


@dataclass(frozen=True)
class Line:
    """``rate * m + level``, the magnitudes of all terms that add up to the two, and how many terms there are."""

    rate: Fraction
    level: Fraction
    rate_size: Fraction
    level_size: Fraction
    terms: int = 1

    @classmethod
    def of(cls, rate: Fraction, level: Fraction) -> Line:
        return cls(rate, level, abs(rate), abs(level))

    def times(self, factor: Fraction) -> Line:
        size = abs(factor)
        sizes = size * self.rate_size, size * self.level_size
        return Line(factor * self.rate, factor * self.level, *sizes, self.terms)

    def plus(self, other: Line) -> Line:
        return Line(
            self.rate + other.rate,
            self.level + other.level,
            self.rate_size + other.rate_size,
            self.level_size + other.level_size,
            self.terms + other.terms,
        )

    def size(self, m: Fraction) -> Fraction:
        """The sum of the magnitudes at weights of up to ``m``."""
        return self.rate_size * abs(m) + self.level_size


def total(lines: Sequence[Line]) -> Line:
    return reduce(Line.plus, lines, Line.of(Fraction(0), Fraction(0)))


@dataclass(frozen=True)
class Setting:
    """What a training loop was given: the shards (worker -> batch -> points) and how often to step."""

    shards: tuple[tuple[Batch, ...], ...]
    iterations: int

    @property
    def batches(self) -> int:
        """Batches of each worker."""
        return len(self.shards[0])

    @property
    def points(self) -> int:
        return sum(len(batch) for batch in chain(*self.shards))

    @property
    def nominal(self) -> int:
        """The size of the first batch."""
        return len(self.shards[0][0])


class Textbook:
    """The right answers."""

    format: Format = FP64

    # The decisions.

    def loss(self, error: Fraction) -> Fraction:
        """What one point with this error adds to the loss."""
        return error**2

    def error(self, m: Fraction, x: Fraction, y: Fraction) -> Fraction:
        return y - m * x

    def derivative(self, x: Fraction, y: Fraction) -> Line:
        """Of (y - m x)^2, with respect to m: -2 x (y - m x)."""
        return Line.of(2 * x * x, -2 * x * y)

    def used(self, batch: Batch) -> Batch:
        """The points of a batch that count."""
        return batch

    def share(self, n: int) -> Fraction:
        """What the contribution of one point is divided by, given its N."""
        return Fraction(n)

    def divisor(self, size: int, setting: Setting) -> Fraction:
        """What the sum over a batch of ``size`` points is divided by."""
        return Fraction(size)

    def start(self, m: Fraction) -> Fraction:
        return m

    def length(self, setting: Setting) -> int:
        """Iterations that are done."""
        return setting.iterations

    def turn(self, iteration: int, setting: Setting) -> int:
        """The index of an iteration's batch."""
        return iteration % setting.batches

    def read(self, shard: tuple[Batch, ...], turn: int) -> Batch:
        """What a worker reads in one iteration."""
        return shard[turn]

    def average(self, lines: Sequence[Line]) -> Line:
        """One gradient out of those of all workers."""
        return total(lines).times(Fraction(1, len(lines)))

    def stepped(self, m: Affine, first: Affine, lr: Fraction, lines: Sequence[Line]) -> Affine:
        """The weight after an iteration in which the workers' gradients were ``lines``; ``first`` was the initial
        weight.
        """
        return self.moved(m, m, lr, self.average(lines))

    def finished(self, result: Enclosure, given: dict[str, Any]) -> Enclosure:
        """What is returned, given the arguments."""
        return result

    # The functions of the exercise, and what they share.

    def answer(self, function: str, arguments: dict[str, Any]) -> Enclosure:
        """What ``function`` returns: a single number and the radius that rounding explains."""
        result: Enclosure = getattr(self, function)(**arguments)
        return self.finished(result, arguments)

    def loss_mse(self, m: float, data: Sequence[Sequence[float]]) -> Enclosure:
        weight, points = as_rational(m), _points(data)
        setting = Setting(((points,),), 1)
        by = self.divisor(len(points), setting)
        used = self.used(points)
        value = sum((self.loss(self.error(weight, x, y)) for x, y in used), Fraction(0)) / by
        # The terms of an expanded square are larger than the square.
        size = sum((self.loss(abs(y) + abs(weight * x)) for x, y in used), Fraction(0)) / abs(by)
        return Enclosure((value,), (self._radius(len(points), size),))

    def grad_point(self, m: float, data: Sequence[float], N: int) -> Enclosure:
        [(x, y)] = _points([data])
        return self._at(as_rational(m), self.derivative(x, y).times(1 / self.share(N)))

    def grad_multi(self, m: float, data: Sequence[Sequence[float]]) -> Enclosure:
        points = _points(data)
        return self._at(as_rational(m), self.mean(points, Setting(((points,),), 1)))

    def train_loop(self, m: float, lr: float, dataset: Sequence[Sequence[float]], iterations: int) -> Enclosure:
        shard = tuple((point,) for point in _points(dataset))
        return self._train(m, lr, Setting((shard,), iterations))

    def train_loop_batches(
        self, m: float, lr: float, dataset: Sequence[Sequence[Sequence[float]]], iterations: int
    ) -> Enclosure:
        return self._train(m, lr, Setting((tuple(map(_points, dataset)),), iterations))

    def train_loop_distributed(
        self, m: float, lr: float, shards: Sequence[Sequence[Sequence[Sequence[float]]]], iterations: int
    ) -> Enclosure:
        return self._train(m, lr, Setting(tuple(tuple(map(_points, shard)) for shard in shards), iterations))

    def mean(self, batch: Batch, setting: Setting) -> Line:
        """The gradient of a batch."""
        lines = [self.derivative(x, y) for x, y in self.used(batch)]
        return total(lines).times(1 / self.divisor(len(batch), setting))

    def moved(self, m: Affine, at: Affine, lr: Fraction, line: Line) -> Affine:
        """``m - lr * line(at)``, with what rounding may add."""
        step = at.transform([[-lr * line.rate]], [-lr * line.level])
        size = m.magnitude[0] + abs(lr) * line.size(at.magnitude[0])
        return m.plus(step).widen([self._radius(line.terms, size)])

    def _train(self, m: float, lr: float, setting: Setting) -> Enclosure:
        weight = first = Symbols().exactly((self.start(as_rational(m)),))
        for iteration in range(self.length(setting)):
            turn = self.turn(iteration, setting)
            lines = [self.mean(self.read(shard, turn), setting) for shard in setting.shards]
            weight = self.stepped(weight, first, as_rational(lr), lines)
        return weight.enclosure()

    def _at(self, m: Fraction, line: Line) -> Enclosure:
        return Enclosure((line.rate * m + line.level,), (self._radius(line.terms, line.size(m)),))

    def _radius(self, terms: int, size: Fraction) -> Fraction:
        roundings = terms + _ROUNDINGS
        return gamma(roundings, self.format) * size + roundings * self.format.quantum * (2 + size)


def _points(data: Sequence[Sequence[float]]) -> tuple[Point, ...]:
    return tuple((as_rational(x), as_rational(y)) for x, y in data)
