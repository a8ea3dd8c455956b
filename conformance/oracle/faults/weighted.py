"""Known bugs of a loss that is weighted by sample."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import chain

from conformance.oracle.faults.catalogue import accumulating, distributed, fault
from conformance.oracle.recurrence import Recurrence, times
from conformance.workloads.layout import Window
from conformance.workloads.problem import Problem
from conformance.workloads.workload import Vector

_FIX = "divide each sum of losses by the weight of the whole window"
_FIX_OF_RANKS = (
    "divide each sum of losses by the weight of the window on all ranks; if gradients are averaged over them, "
    "multiply it by their number"
)


def _weighted(problem: Problem) -> bool:
    return problem.workload.loss == "weighted"


@fault(
    "averages the micro-batches' weighted means instead of dividing by the global weight",
    _weighted,
    lambda problem: accumulating(problem) or distributed(problem),
    fix=_FIX,
    fix_of_ranks=_FIX_OF_RANKS,
    why="A sample in a light micro-batch counts more than in a heavy one",
    edit="change divisor; change division; find the divisor at or above backward",
)
class MeanOfMicroBatchMeans(Recurrence):
    def counted(self, window: Window) -> Vector:
        return mean_of_means(super().counted(window), list(chain.from_iterable(window.shares)))


@fault(
    "averages the ranks' weighted means instead of dividing by the global weight",
    _weighted,
    distributed,
    fix=_FIX,
    fix_of_ranks=_FIX_OF_RANKS,
    why="A sample on a light rank counts more than on a heavy one",
    edit="change divisor; change division; find the divisor at or above backward",
)
class MeanOfRankMeans(Recurrence):
    def counted(self, window: Window) -> Vector:
        return mean_of_means(super().counted(window), [tuple(chain.from_iterable(share)) for share in window.shares])


def mean_of_means(right: Vector, groups: Sequence[Sequence[int]]) -> Vector:
    """The mean of the means of ``groups``, which together are all samples."""
    result = list(right)
    for group in groups:
        weight = len(groups) * sum((right[index] for index in group), Fraction(0))
        for index in group:
            result[index] = right[index] / weight if weight else Fraction(0)
    return tuple(result)


@fault(
    "ignores the samples' weights",
    _weighted,
    fix="multiply each sample's loss by its weight",
    why="Light samples count as much as heavy ones",
    edit="change loss; find the loss at or above backward",
)
class SampleWeightsIgnored(Recurrence):
    def counted(self, window: Window) -> Vector:
        return (Fraction(1, len(window.batch)),) * len(window.batch)


def _totals_differ(problem: Problem) -> bool:
    return len({problem.total_weight(window) for window in problem.windows}) > 1


@fault(
    "divides a weighted loss by the number of samples instead of their weight",
    _weighted,
    fix="divide by the sum of the weights, not by the number of samples",
    why="The number of samples is not the sum of their weights, so all gradients have a wrong factor",
    edit="change divisor; change division; find the divisor at or above backward",
)
class SamplesForWeight(Recurrence):
    def counted(self, window: Window) -> Vector:
        return times(super().counted(window), self.problem.total_weight(window) / len(window.batch))


@fault(
    "divides every window's loss by the weight of the first window",
    _weighted,
    _totals_differ,
    fix="sum the weights of each window",
    why="Windows of another weight get gradients that are wrong by the ratio of the two",
    edit="change divisor; change division; find the divisor at or above backward",
)
class WeightOfFirstWindow(Recurrence):
    def counted(self, window: Window) -> Vector:
        first = self.problem.total_weight(self.problem.windows[0])
        return times(super().counted(window), self.problem.total_weight(window) / first)


@fault(
    "divides by the weight of rank 0's samples on every rank",
    _weighted,
    distributed,
    fix="all-reduce the weights of the window, and divide by their sum",
    why="Each rank's loss is divided by rank 0's weight instead of the sum over ranks",
    edit="change divisor; change division; find the divisor at or above backward",
)
class WeightOfRankZero(Recurrence):
    def counted(self, window: Window) -> Vector:
        own = sum((window.batch[index].weight for index in chain.from_iterable(window.shares[0])), Fraction(0))
        right = super().counted(window)
        return times(right, self.problem.total_weight(window) / own / window.world_size) if own else right


@fault(
    "counts one more target for each sample, which is never predicted",
    _weighted,
    fix="count targets after the shift: the first one of a row is never predicted",
    why="The divisor is too large by one target for each sample",
    edit="change divisor; change division; find the divisor at or above backward",
)
class NeverPredictedCounted(Recurrence):
    def counted(self, window: Window) -> Vector:
        total = self.problem.total_weight(window)
        return times(super().counted(window), total / (total + len(window.batch)))


@fault(
    "counts ignored targets, too",
    _weighted,
    fix="count the targets that are not ignored",
    why="The divisor has all places of a row, also those without a loss",
    edit="change divisor; change division; find the divisor at or above backward",
)
class IgnoredCounted(Recurrence):
    def counted(self, window: Window) -> Vector:
        places = max(sample.weight for sample in self.problem.workload.data)
        return times(super().counted(window), self.problem.total_weight(window) / (places * len(window.batch)))


@fault(
    "divides a window's loss by the count of the window before",
    _totals_differ,
    fix="count the samples, or their weight, of each window before its loss is divided",
    why="Windows of another size get gradients that are wrong by the ratio of the two",
    edit="change divisor; change division; find the divisor at or above backward",
)
class TotalOfWindowBefore(Recurrence):
    _before: Fraction | None = None

    def counted(self, window: Window) -> Vector:
        total = self.problem.total_weight(window)
        before, self._before = self._before or total, total
        return times(super().counted(window), total / before)
