"""Known bugs in sums and means over samples, windows and ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from itertools import chain

from conformance.oracle.affine import Affine
from conformance.oracle.faults.catalogue import accumulating, distributed, fault
from conformance.oracle.recurrence import Recurrence, times
from conformance.workloads.layout import Window
from conformance.workloads.model import Tensor
from conformance.workloads.workload import Vector


def only(coefficients: Vector, micro_batches: Iterable[Iterable[int]]) -> Vector:
    kept = set(chain.from_iterable(micro_batches))
    return tuple(c if i in kept else Fraction(0) for i, c in enumerate(coefficients))


@fault(
    "sums the ranks' gradients instead of averaging them",
    distributed,
    at="exchange",
    fix="divide the sum over the ranks by their number",
    why="A sum over ranks is the mean times the number of ranks",
    edit="change hook; change `Sum` near optimizer; change division; find the divisor at or above backward",
)
class SumOverRanks(Recurrence):
    def over_ranks(self, window: Window) -> Fraction:
        return Fraction(window.with_data)


@fault(
    "divides by the world size twice",
    distributed,
    at="exchange",
    fix="remove your own division by the number of ranks or by a count of all ranks: their average divides already",
    why="The second division makes the mean smaller by the number of ranks",
    edit="change division; find your own division by the number of ranks or by a count of all ranks at or above step",
)
class WorldDividedTwice(Recurrence):
    def over_ranks(self, window: Window) -> Fraction:
        return Fraction(1, window.world_size)


@fault(
    "sums the micro-batches without dividing by their number",
    accumulating,
    fix="divide each loss by the number of micro-batches in its window",
    why="`.grad` adds up, so undivided micro-batches give their number times the mean",
    edit="change backward to `({} / len(window)).backward()`",
)
class SumOverWindow(Recurrence):
    def over_window(self, window: Window) -> Fraction:
        return Fraction(window.length)


@fault(
    "divides by the accumulation length twice",
    accumulating,
    fix="divide each loss by the number of micro-batches once; remove the other division",
    why="The second division makes the mean smaller by the number of micro-batches",
    edit="change division; find the two divisions at or above backward",
)
class WindowDividedTwice(Recurrence):
    def over_window(self, window: Window) -> Fraction:
        return Fraction(1, window.length)


@fault(
    "sums the loss over samples instead of averaging it",
    lambda problem: problem.layout.micro_batch_size > 1 and problem.workload.loss == "mean",
    fix='average the loss over its samples: `reduction="mean"`',
    why="A sum over samples is the mean times the number of samples",
    edit="change loss; find the loss at or above backward",
)
class LossSummed(Recurrence):
    def over_samples(self, window: Window) -> Fraction:
        return Fraction(len(window.shares[0][0]))


@fault(
    "steps with each rank's own gradient, without averaging over ranks",
    distributed,
    fix="average `p.grad` over the ranks before the step",
    why="Without an average, each rank moves along its own samples only",
    edit="add the average over the ranks above clip|step",
)
class NotSynchronised(Recurrence):
    # A trainer that does not average over ranks cannot average wrongly.
    over_ranks = Recurrence.over_ranks

    def counted(self, window: Window) -> Vector:
        own = only(super().counted(window), window.shares[0])
        return times(own, 1 / sum(own, Fraction(0))) if any(own) else own


@fault(
    "keeps only the gradients of each window's last micro-batch",
    accumulating,
    fix="add up the gradients of all micro-batches; clear or replace them only after the step",
    why="The last micro-batch replaces the gradients of earlier ones",
    edit="change between; change gradient; find the sum of gradients at or above unscale|clip|step",
)
class ZeroGradInWindow(Recurrence):
    def counted(self, window: Window) -> Vector:
        return only(super().counted(window), (share[-1] for share in window.shares if share))


@fault(
    "uses only the first micro-batch of a window",
    accumulating,
    fix="call `backward()` for each micro-batch of the window",
    why="Only the first micro-batch ever adds to `.grad`",
    edit="change backward",
)
class FirstMicroBatchOnly(Recurrence):
    def counted(self, window: Window) -> Vector:
        return only(super().counted(window), (share[0] for share in window.shares if share))


@fault(
    "adds the earlier micro-batches of a window again with each later micro-batch",
    accumulating,
    fix="reduce, divide or add gradients once, after the window's last backward pass",
    why="Each later call works on the running total, so earlier micro-batches enter again",
    edit="change backward",
)
class EarlierMicroBatchesAgain(Recurrence):
    def counted(self, window: Window) -> Vector:
        times_of = {
            index: len(own) - number
            for own in window.shares
            for number, micro_batch in enumerate(own)
            for index in micro_batch
        }
        return tuple(c * times_of.get(index, 1) for index, c in enumerate(super().counted(window)))


@fault(
    "drops one sample of the batch",
    fix="train on all samples of each batch",
    why="The mean is over one sample less",
    edit="find the samples at or above backward",
)
class SampleDropped(Recurrence):
    def counted(self, window: Window) -> Vector:
        right = super().counted(window)
        last = max(index for index, c in enumerate(right) if c)
        return (*right[:last], Fraction(0), *right[last + 1 :])


@fault(
    "reads one sample twice and skips the next one",
    lambda problem: problem.workload.batch_size > 1,
    fix="read each sample once in an epoch",
    why="One sample has twice its weight, another one none",
    edit="find the samples at or above backward",
)
class SampleRepeated(Recurrence):
    def counted(self, window: Window) -> Vector:
        right = super().counted(window)
        return (*right[:-2], right[-2] + right[-1], Fraction(0)) if len(right) > 1 else right


class InTurn(Recurrence):
    """Parameters are dealt out to the ranks in turn."""

    def owners(self, world_size: int) -> Sequence[int]:
        """The rank of each element."""
        return [tensor % world_size for tensor in self.problem.workload.model.tensor_of]


class Rows(Recurrence):
    """The rows of each parameter are divided into equal blocks, as by `fully_shard`."""

    def owners(self, world_size: int) -> Sequence[int]:
        """The rank of each element."""
        return [rank for tensor in self.problem.workload.model.tensors for rank in _blocks(tensor, world_size)]


def _blocks(tensor: Tensor, world_size: int) -> Iterable[int]:
    rows = tensor.shape[0] if tensor.shape else 1
    # Elements that the model does not use have no gradients.
    places = [*(range(tensor.numel) if tensor.used is None else tensor.used), 0, 0][: tensor.size]
    return [place * rows // tensor.numel // -(-rows // world_size) for place in places]


@fault(
    "steps each rank's shard of the flattened parameters with the rank's own gradients",
    distributed,
    fix="reduce gradients before the step, and step with what the reduction returns",
    why="Each rank's shard moves along this rank's own samples only",
    edit="add the reduction over the ranks above unscale|clip|step",
)
class ShardsStepOwnGradients(Recurrence):
    def averaged(self, window: Window, weights: Affine, coefficients: Vector) -> Affine:
        owners = self.owners(window.world_size)
        vector = self.symbols.exactly([Fraction(0)] * len(weights))
        for rank, share in enumerate(window.shares):
            own = super().averaged(window, weights, times(only(coefficients, share), window.with_data))
            vector = vector.plus(own.where([owner == rank for owner in owners]))
        return vector

    def owners(self, world_size: int) -> Sequence[int]:
        """The rank of each element."""
        elements = len(self.problem.workload.start)
        return [place // -(-elements // world_size) for place in range(elements)]


@fault(
    "reduces the gradients before a window's last backward, and steps each rank's shard with the rank's own last ones",
    distributed,
    accumulating,
    fix="reduce gradients after the window's last backward, and step with what the reduction returns",
    why="The last micro-batch's gradients come after the reduction, so each shard has only its rank's own",
    edit="add the reduction over the ranks above unscale|clip|step",
)
class LastMicroBatchNotReduced(ShardsStepOwnGradients):
    def averaged(self, window: Window, weights: Affine, coefficients: Vector) -> Affine:
        last = only(coefficients, chain.from_iterable(share[-1:] for share in window.shares))
        earlier = [every - late for every, late in zip(coefficients, last, strict=True)]
        reduced = super(ShardsStepOwnGradients, self).averaged(window, weights, tuple(earlier))
        return reduced.plus(super().averaged(window, weights, last))


@fault(
    "steps the parameters of each rank, dealt out in turn, with the rank's own gradients",
    distributed,
    lambda problem: len(problem.workload.model.tensors) > 1,
    fix="reduce gradients before the step, and step with what the reduction returns",
    why="Each owned parameter moves along its rank's own samples only",
    edit="add the reduction over the ranks above unscale|clip|step",
)
class OwnersStepOwnGradients(InTurn, ShardsStepOwnGradients):
    pass
