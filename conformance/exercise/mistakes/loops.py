"""Mistakes in training loops, and in averaging over workers."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from conformance.exercise.mistakes.mistake import DISTRIBUTED, LOOP, LOOPS, OVER_BATCHES, Mistake, adding_to
from conformance.exercise.textbook import Batch, Line, Setting, Textbook, total
from conformance.oracle.affine import Affine

MISTAKES: list[Mistake] = []
mistake = adding_to(MISTAKES)

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
