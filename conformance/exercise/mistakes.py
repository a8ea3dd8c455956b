"""Common mistakes in the exercise, each as the textbook with one decision changed.

An answer that lies in a mistake's enclosure on every input that was tried is recognised by it. Two mistakes at once
are the textbook with both decisions changed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations
from math import floor
from typing import Any

from conformance.exercise.textbook import Batch, Line, Setting, Textbook, total
from conformance.oracle.affine import Affine, Enclosure, square_root
from conformance.oracle.rounding import nearest
from conformance.workloads.precision import FP32, FP64


@dataclass(frozen=True)
class Mistake:
    """``does`` completes "It looks as if it ..."; ``mend`` says what to do instead."""

    does: str
    mend: str
    functions: tuple[str, ...]
    textbook: type[Textbook]

    @property
    def decisions(self) -> set[str]:
        return {name for name in vars(self.textbook) if not name.startswith("__")}


CATALOGUE: list[Mistake] = []

LOSS, POINT, MULTI = ("loss_mse",), ("grad_point",), ("grad_multi",)
LOOP, BATCHES, DISTRIBUTED = ("train_loop",), ("train_loop_batches",), ("train_loop_distributed",)
GRADIENTS, OVER_BATCHES = POINT + MULTI, BATCHES + DISTRIBUTED
LOOPS = LOOP + OVER_BATCHES
ALL = LOSS + GRADIENTS + LOOPS


def mistake(functions: Sequence[str], does: str, mend: str) -> Callable[[type[Textbook]], type[Textbook]]:
    """Add a textbook with one wrong decision to the catalogue; functions may be told of the same one differently."""

    def add(textbook: type[Textbook]) -> type[Textbook]:
        CATALOGUE.append(Mistake(does, mend, tuple(functions), textbook))
        return textbook

    return add


def candidates(function: str) -> list[tuple[Mistake, ...]]:
    """What may be wrong with ``function``: one mistake, then two at once that concern different decisions."""
    single = [one for one in CATALOGUE if function in one.functions]
    pairs = [(one, two) for one, two in combinations(single, 2) if not one.decisions & two.decisions]
    return [*((one,) for one in single), *pairs]


def mistaken(mistakes: Sequence[Mistake]) -> Textbook:
    """The textbook with all of these decisions changed."""
    made: Textbook = type("Mistaken", tuple(one.textbook for one in mistakes), {})()
    return made


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


# The loop.


@mistake(LOOPS, "starts from 0 and not from the weight that it is given", "Begin with the argument `m`.")
class StartsFromZero(Textbook):
    def start(self, m: Fraction) -> Fraction:
        return Fraction(0)


@mistake(LOOPS, "does one iteration too many", "Do `iterations` steps: `for i in range(iterations)`.")
class OneMore(Textbook):
    def length(self, setting: Setting) -> int:
        return setting.iterations + 1


@mistake(LOOPS, "does one iteration too few", "Do `iterations` steps, and return the weight after the last one.")
class OneFewer(Textbook):
    def length(self, setting: Setting) -> int:
        return setting.iterations - 1


@mistake(
    LOOPS, "takes a single step", "Repeat the step `iterations` times; a `return` inside of the loop ends it early."
)
class SingleStep(Textbook):
    def length(self, setting: Setting) -> int:
        return min(1, setting.iterations)


@mistake(LOOPS, "goes through the whole dataset in every iteration", "One iteration is one step.")
class EpochsForIterations(Textbook):
    def length(self, setting: Setting) -> int:
        return setting.iterations * setting.batches


@mistake(
    LOOPS, "stops at the end of the dataset", "After the last one, begin again with the first: `i % len(dataset)`."
)
class StopsAtTheEnd(Textbook):
    def length(self, setting: Setting) -> int:
        return min(setting.iterations, setting.batches)


@mistake(LOOP, "uses the first point in every iteration", "Use the next point each time: number `i % len(dataset)`.")
@mistake(
    OVER_BATCHES, "uses the first batch in every iteration", "Use the next batch each time: `i % number of batches`."
)
class NeverAdvances(Textbook):
    def turn(self, iteration: int, setting: Setting) -> int:
        return 0


@mistake(LOOP, "begins with the second point", "The first iteration uses point number 0.")
@mistake(OVER_BATCHES, "begins with the second batch", "The first iteration uses batch number 0.")
class BeginsWithTheSecond(Textbook):
    def turn(self, iteration: int, setting: Setting) -> int:
        return (iteration + 1) % setting.batches


@mistake(
    LOOP,
    "stays at the last point once it is there",
    "After the last one, begin again with the first: `i % len(dataset)`.",
)
@mistake(OVER_BATCHES, "stays at the last batch once it is there", "After the last one, begin again with the first.")
class StaysAtTheEnd(Textbook):
    def turn(self, iteration: int, setting: Setting) -> int:
        return min(iteration, setting.batches - 1)


@mistake(LOOPS, "goes through the dataset backwards", "Begin with the first, and go on to the next.")
class Backwards(Textbook):
    def turn(self, iteration: int, setting: Setting) -> int:
        return -1 - iteration % setting.batches


@mistake(LOOP, "uses all points in every iteration", "For this question, use one point an iteration, each in its turn.")
@mistake(OVER_BATCHES, "uses all batches in every iteration", "Use one batch an iteration, each in its turn.")
class WholeDataset(Textbook):
    def read(self, shard: tuple[Batch, ...], turn: int) -> Batch:
        return [point for batch in shard for point in batch]


@mistake(LOOPS, "leaves out the learning rate", "The step is `-gradient * lr`.")
class WithoutRate(Textbook):
    def stepped(self, m: Affine, first: Affine, lr: Fraction, lines: Sequence[Line]) -> Affine:
        return self.moved(m, m, Fraction(1), self.average(lines))


@mistake(
    LOOPS,
    "computes every gradient at the initial weight",
    "The gradient depends on the weight: compute it anew, at the weight that the last step left.",
)
class StaleWeight(Textbook):
    def stepped(self, m: Affine, first: Affine, lr: Fraction, lines: Sequence[Line]) -> Affine:
        return self.moved(m, first, lr, self.average(lines))


# Several workers.


@mistake(
    DISTRIBUTED,
    "sums the workers' gradients where their average is asked",
    "Divide the sum by the number of workers.",
)
class SummedOverWorkers(Textbook):
    def average(self, lines: Sequence[Line]) -> Line:
        return total(lines)


@mistake(DISTRIBUTED, "uses the gradient of the first worker only", "Average over all workers.")
class FirstWorkerOnly(Textbook):
    def average(self, lines: Sequence[Line]) -> Line:
        return lines[0]


@mistake(DISTRIBUTED, "uses the gradient of the last worker only", "Average over all workers.")
class LastWorkerOnly(Textbook):
    def average(self, lines: Sequence[Line]) -> Line:
        return lines[-1]


@mistake(DISTRIBUTED, "divides by the number of workers twice", "Average once.")
class AveragedTwice(Textbook):
    def average(self, lines: Sequence[Line]) -> Line:
        return total(lines).times(Fraction(1, len(lines) ** 2))


@mistake(
    DISTRIBUTED,
    "lets the workers step one after the other",
    "All workers compute their gradients at the same weight; then one step is taken, with the average.",
)
class WorkersStepInTurn(Textbook):
    def stepped(self, m: Affine, first: Affine, lr: Fraction, lines: Sequence[Line]) -> Affine:
        for line in lines:
            m = self.moved(m, m, lr, line)
        return m


# What is done to the result.


@mistake(LOSS + GRADIENTS, "divides with `//`", "`//` rounds down to a whole number: divide with `/`.")
class FloorDivision(Textbook):
    def finished(self, result: Enclosure, given: dict[str, Any]) -> Enclosure:
        return Enclosure((Fraction(floor(result.center[0])),), (Fraction(0),))


def _rounds(places: int) -> None:
    @mistake(
        ALL, f"rounds what it returns to {places} decimal places", "Return the number as it is; the tests round it."
    )
    class Rounds(Textbook):
        def finished(self, result: Enclosure, given: dict[str, Any]) -> Enclosure:
            # The double that is nearest to the rounded number.
            return Enclosure((nearest(round(result.center[0], places), FP64),), (Fraction(0),))


for _places in range(1, 9):
    _rounds(_places)


@mistake(LOOPS, "returns how far the weight has moved", "Return the weight itself.")
class ReturnsTheMove(Textbook):
    def finished(self, result: Enclosure, given: dict[str, Any]) -> Enclosure:
        start = Fraction(given["m"])
        # The last difference rounds once more.
        further = (abs(result.center[0]) + abs(start)) * 2 * FP64.unit_roundoff
        return Enclosure((result.center[0] - start,), (result.radius[0] + further,))


# Last, because its enclosure is wide.
@mistake(
    ALL, "computes in single precision", "It is right to seven digits. Python's own floats have sixteen: use them."
)
class SinglePrecision(Textbook):
    format = FP32
