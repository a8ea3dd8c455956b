"""Mistakes in the loss, in its derivative, and in which points count."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from conformance.exercise.mistakes.mistake import GRADIENTS, LOOPS, LOSS, MULTI, OVER_BATCHES, POINT, Mistake, adding_to
from conformance.exercise.textbook import Batch, Line, Setting, Textbook
from conformance.oracle.affine import Enclosure, square_root
from conformance.workloads.precision import FP64

MISTAKES: list[Mistake] = []
mistake = adding_to(MISTAKES)

# The loss and the derivative.


@mistake(LOSS, "takes the root of the mean squared error", "Return the mean of the squares itself.")
class RootOfLoss(Textbook):
    def finished(self, result: Enclosure, given: dict[str, Any]) -> Enclosure:
        [value], [radius] = result.center, result.radius
        low, high = square_root(max(value - radius, Fraction(0)))[0], square_root(value + radius)[1]
        return Enclosure(((low + high) / 2,), ((high - low) / 2 + high * FP64.unit_roundoff,))


@mistake(LOSS, "takes the errors by their magnitude", "Square each error: `(ytrue - m*x)**2`.")
class AbsoluteError(Textbook):
    def loss(self, error: Fraction) -> Fraction:
        return abs(error)


@mistake(LOSS, "does not square the errors", "Square each error, so that none is negative: `(ytrue - m*x)**2`.")
class PlainError(Textbook):
    def loss(self, error: Fraction) -> Fraction:
        return error


@mistake(LOSS, "halves the squared errors", "This loss has no factor of one half: take the mean of `(ytrue - m*x)**2`.")
class HalfSquare(Textbook):
    def loss(self, error: Fraction) -> Fraction:
        return error**2 / 2


@mistake(LOSS, "adds the prediction to the truth", "The error is their difference: `ytrue - m*x`.")
class SumOfBoth(Textbook):
    def error(self, m: Fraction, x: Fraction, y: Fraction) -> Fraction:
        return y + m * x


@mistake(LOOPS, "goes up the slope", "The step is `-gradient * lr`: subtract `gradient * lr` from the weight.")
@mistake(GRADIENTS, "flips the sign of the gradient", "The derivative of `(ytrue - m*x)**2` is `-2*x*(ytrue - m*x)`.")
class Flipped(Textbook):
    def derivative(self, x: Fraction, y: Fraction) -> Line:
        return super().derivative(x, y).times(Fraction(-1))


@mistake(
    GRADIENTS + LOOPS,
    "leaves out the factor 2 of the derivative",
    "The derivative of a square has a factor of two: `-2*x*(ytrue - m*x)`.",
)
class WithoutTwo(Textbook):
    def derivative(self, x: Fraction, y: Fraction) -> Line:
        return super().derivative(x, y).times(Fraction(1, 2))


@mistake(
    GRADIENTS + LOOPS,
    "leaves out the inner derivative",
    "By the chain rule the derivative of `ytrue - m*x`, which is `-x`, is a factor too: `-2*x*(ytrue - m*x)`.",
)
class WithoutChainRule(Textbook):
    def derivative(self, x: Fraction, y: Fraction) -> Line:
        return Line.of(2 * x, -2 * y)


# Which points count, and what their sum is divided by.

OVER_POINTS = LOSS + MULTI + OVER_BATCHES


@mistake(POINT, "ignores N", "One point's gradient is its part of the mean over N points: divide it by N.")
class IgnoresN(Textbook):
    def share(self, n: int) -> Fraction:
        return Fraction(1)


@mistake(POINT, "divides by N twice", "Divide by N once.")
class SharedTwice(Textbook):
    def share(self, n: int) -> Fraction:
        return Fraction(n * n)


@mistake(POINT, "multiplies by N", "Divide by N.")
class TimesN(Textbook):
    def share(self, n: int) -> Fraction:
        return Fraction(1, n)


@mistake(LOSS, "sums the squared errors where their mean is asked", "Divide the sum by the number of points.")
@mistake(
    MULTI + OVER_BATCHES,
    "sums the gradients of the points where their mean is asked",
    "Divide the sum by the number of points in the batch.",
)
class Summed(Textbook):
    def divisor(self, size: int, setting: Setting) -> Fraction:
        return Fraction(1)


@mistake(
    OVER_POINTS,
    "divides by the number of points twice",
    "Take the mean once: where each point is divided by N already, add the points up.",
)
class DividedTwice(Textbook):
    def divisor(self, size: int, setting: Setting) -> Fraction:
        return Fraction(size * size)


@mistake(LOSS + MULTI, "divides by the number of points less one", "A mean divides by the number of points.")
class DividedByOneLess(Textbook):
    def divisor(self, size: int, setting: Setting) -> Fraction:
        return Fraction(size - 1)


@mistake(
    OVER_BATCHES,
    "divides by the nominal batch size, that of the first batch",
    "Batches need not be equally long: divide by the number of points in this batch, `len(batch)`.",
)
class NominalSize(Textbook):
    def divisor(self, size: int, setting: Setting) -> Fraction:
        return Fraction(setting.nominal)


@mistake(OVER_BATCHES, "divides by the number of batches", "Divide by the number of points in the batch.")
class DividedByBatches(Textbook):
    def divisor(self, size: int, setting: Setting) -> Fraction:
        return Fraction(setting.batches)


@mistake(
    LOOPS,
    "divides by the number of points in the whole dataset",
    "N is the number of points that this iteration uses, not of all there are.",
)
class DividedByAll(Textbook):
    def divisor(self, size: int, setting: Setting) -> Fraction:
        return Fraction(setting.points)


@mistake(
    OVER_POINTS, "counts the first point only", "Go through all points; a `return` inside of the loop ends it early."
)
class FirstPointOnly(Textbook):
    def used(self, batch: Batch) -> Batch:
        return batch[:1]


@mistake(
    OVER_POINTS,
    "counts the last point only",
    "Add each point to a running total, which must not start anew for every point.",
)
class LastPointOnly(Textbook):
    def used(self, batch: Batch) -> Batch:
        return batch[-1:]


@mistake(OVER_POINTS, "leaves out the first point", "Count the points from 0.")
class WithoutTheFirst(Textbook):
    def used(self, batch: Batch) -> Batch:
        return batch[1:]


@mistake(OVER_POINTS, "leaves out the last point", "`range(len(data))` ends before `len(data)` on its own.")
class WithoutTheLast(Textbook):
    def used(self, batch: Batch) -> Batch:
        return batch[:-1]
