"""The catalogue of numeric faults: what trainers get wrong, each as one deviation from the textbook.

Each fault has its own trajectory. A comparison has *power* against it if at some step the fault's enclosure and the
right answer's have no point in common: then no trainer with that fault can pass. A trainer with numbers inside a
fault's enclosure most likely has that fault.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import chain

from conformance.oracle.affine import Affine
from conformance.oracle.deviation import Deviation
from conformance.oracle.gradient import gradient
from conformance.oracle.optimizers import AdamWRule
from conformance.oracle.recurrence import Recurrence, times
from conformance.oracle.rounding import nearest
from conformance.workloads.layout import Window
from conformance.workloads.precision import BF16
from conformance.workloads.problem import Problem
from conformance.workloads.workload import SGD, AdamW, Vector

Condition = Callable[[Problem], bool]
#: The samples of a micro-batch.
Micro = tuple[int, ...]


@dataclass(frozen=True)
class Fault(Deviation):
    """``conditions``: what must hold for a problem if a trainer can have this fault in it."""

    conditions: tuple[Condition, ...]

    @property
    def name(self) -> str:
        """``SumOverRanks`` is ``sum-over-ranks``."""
        return re.sub(r"(?<!^)(?=[A-Z])", "-", self.textbook.__name__).lower()

    def applies(self, problem: Problem) -> bool:
        return all(condition(problem) for condition in self.conditions)


CATALOGUE: list[Fault] = []


def fault(text: str, *conditions: Condition) -> Callable[[type[Recurrence]], type[Recurrence]]:
    """Add a textbook with one wrong decision to the catalogue."""

    def add(textbook: type[Recurrence]) -> type[Recurrence]:
        CATALOGUE.append(Fault(text, textbook, conditions))
        return textbook

    return add


def applicable(problem: Problem) -> list[Fault]:
    return [fault for fault in CATALOGUE if fault.applies(problem)]


def _distributed(problem: Problem) -> bool:
    return problem.layout.world_size > 1


def _accumulating(problem: Problem) -> bool:
    return problem.layout.accumulation > 1


def _runs_out(problem: Problem) -> bool:
    """Whether some ranks have no data left at the end."""
    return any(window.with_data < window.world_size for window in problem.windows)


def _scaled(problem: Problem) -> bool:
    return problem.precision.scaled


def _clips(problem: Problem) -> bool:
    return problem.workload.clip is not None


def _weighted(problem: Problem) -> bool:
    return problem.workload.loss == "weighted"


def _decays(problem: Problem) -> bool:
    workload = problem.workload
    return bool(workload.optimizer.weight_decay) and (workload.steps > 1 or any(workload.start))


def _has_momentum(problem: Problem) -> bool:
    optimizer = problem.workload.optimizer
    return isinstance(optimizer, SGD) and bool(optimizer.momentum) and problem.workload.steps > 1


def _by_norm(problem: Problem) -> bool:
    return problem.workload.clip is not None and problem.workload.clip.kind == "norm"


def _has_several_parameters(problem: Problem) -> bool:
    return len(problem.workload.model.tensors) > 1


def _has_groups(problem: Problem) -> bool:
    return bool(problem.workload.groups)


def _has_own(setting: str) -> Condition:
    """Whether a parameter group has a momentum or a schedule of its own."""
    return lambda problem: any(getattr(group, setting) is not None for group in problem.workload.groups)


def _has_epochs(problem: Problem) -> bool:
    return problem.workload.epochs > 1 and len(problem.workload.batches) > 1


def _schedules(problem: Problem) -> bool:
    return problem.workload.schedule is not None and problem.workload.steps > 1


# Which samples count, and how much.


def _only(coefficients: Vector, micro_batches: Iterable[Iterable[int]]) -> Vector:
    kept = set(chain.from_iterable(micro_batches))
    return tuple(c if i in kept else Fraction(0) for i, c in enumerate(coefficients))


@fault("sums the ranks' gradients instead of averaging them", _distributed)
class SumOverRanks(Recurrence):
    def over_ranks(self, window: Window) -> Fraction:
        return Fraction(window.with_data)


@fault("divides by the world size twice", _distributed)
class WorldDividedTwice(Recurrence):
    def over_ranks(self, window: Window) -> Fraction:
        return Fraction(1, window.world_size)


@fault("adds up the micro-batches without dividing by their number", _accumulating)
class SumOverWindow(Recurrence):
    def over_window(self, window: Window) -> Fraction:
        return Fraction(window.length)


@fault("divides by the accumulation length twice", _accumulating)
class WindowDividedTwice(Recurrence):
    def over_window(self, window: Window) -> Fraction:
        return Fraction(1, window.length)


@fault(
    "divides a short accumulation window by the nominal length",
    lambda problem: any(window.length < window.nominal for window in problem.windows),
)
class NominalLength(Recurrence):
    def over_window(self, window: Window) -> Fraction:
        return Fraction(window.length, window.nominal)


def _has_smaller_batch(problem: Problem) -> bool:
    full = problem.layout.micro_batch_size
    return any(len(window.batch) < full * window.length * window.world_size for window in problem.windows)


@fault(
    "divides a smaller last batch by the nominal number of samples",
    _has_smaller_batch,
    lambda problem: problem.workload.loss == "mean" and not _runs_out(problem),
)
class NominalSamples(Recurrence):
    def over_samples(self, window: Window) -> Fraction:
        return Fraction(len(window.batch), self.problem.layout.micro_batch_size * window.length * window.world_size)


@fault(
    "averages over the ranks in every micro-batch, which divides the earlier ones again when ranks have no data left",
    _accumulating,
    _runs_out,
)
class AveragedAgain(Recurrence):
    def over_ranks(self, window: Window) -> Fraction:
        return Fraction(1)

    def counted(self, window: Window) -> Vector:
        # The others add zeros to what was averaged before.
        share = Fraction(window.with_data, window.world_size)
        factors = [
            (index, share ** (window.length - number))
            for own in window.shares
            for number, micro_batch in enumerate(own)
            for index in micro_batch
        ]
        right = super().counted(window)
        return tuple(right[index] * factor for index, factor in sorted(factors))


@fault(
    "reduces the loss by a sum where a mean belongs",
    lambda problem: problem.layout.micro_batch_size > 1 and problem.workload.loss == "mean",
)
class LossSummed(Recurrence):
    def over_samples(self, window: Window) -> Fraction:
        return Fraction(len(window.shares[0][0]))


@fault("steps on its own rank's gradient, without averaging over ranks", _distributed)
class NotSynchronised(Recurrence):
    # A trainer that does not average over ranks cannot do it wrong.
    over_ranks = Recurrence.over_ranks

    def counted(self, window: Window) -> Vector:
        own = _only(super().counted(window), window.shares[0])
        return times(own, 1 / sum(own, Fraction(0))) if any(own) else own


@fault("clears gradients inside the window, so that only its last micro-batch counts", _accumulating)
class ZeroGradInWindow(Recurrence):
    def counted(self, window: Window) -> Vector:
        return _only(super().counted(window), (share[-1] for share in window.shares if share))


@fault("loses every micro-batch of a window but the first", _accumulating)
class FirstMicroBatchOnly(Recurrence):
    def counted(self, window: Window) -> Vector:
        return _only(super().counted(window), (share[0] for share in window.shares if share))


@fault("adds the earlier micro-batches of a window again with each later one", _accumulating)
class EarlierMicroBatchesAgain(Recurrence):
    def counted(self, window: Window) -> Vector:
        times_of = {
            index: len(own) - number
            for own in window.shares
            for number, micro_batch in enumerate(own)
            for index in micro_batch
        }
        return tuple(c * times_of.get(index, 1) for index, c in enumerate(super().counted(window)))


@fault("drops one sample of the batch")
class SampleDropped(Recurrence):
    def counted(self, window: Window) -> Vector:
        right = super().counted(window)
        last = max(index for index, c in enumerate(right) if c)
        return (*right[:last], Fraction(0), *right[last + 1 :])


@fault("reads a sample twice and its neighbour never", lambda problem: problem.workload.batch_size > 1)
class SampleRepeated(Recurrence):
    def counted(self, window: Window) -> Vector:
        right = super().counted(window)
        return (*right[:-2], right[-2] + right[-1], Fraction(0)) if len(right) > 1 else right


@fault(
    "averages the micro-batches' weighted means instead of dividing by the global weight",
    _weighted,
    lambda problem: _accumulating(problem) or _distributed(problem),
)
class MeanOfMicroBatchMeans(Recurrence):
    def counted(self, window: Window) -> Vector:
        return mean_of_means(super().counted(window), list(chain.from_iterable(window.shares)))


@fault("averages the ranks' weighted means instead of dividing by the global weight", _weighted, _distributed)
class MeanOfRankMeans(Recurrence):
    def counted(self, window: Window) -> Vector:
        return mean_of_means(super().counted(window), [tuple(chain.from_iterable(share)) for share in window.shares])


def mean_of_means(right: Vector, groups: Sequence[Sequence[int]]) -> Vector:
    """The mean of the means of ``groups``, which divide up all samples."""
    result = list(right)
    for group in groups:
        weight = len(groups) * sum((right[index] for index in group), Fraction(0))
        for index in group:
            result[index] = right[index] / weight if weight else Fraction(0)
    return tuple(result)


@fault("ignores the samples' weights", _weighted)
class SampleWeightsIgnored(Recurrence):
    def counted(self, window: Window) -> Vector:
        return (Fraction(1, len(window.batch)),) * len(window.batch)


def _totals_differ(problem: Problem) -> bool:
    return len({problem.total_weight(window) for window in problem.windows}) > 1


@fault("divides a weighted loss by the number of samples instead of their weight", _weighted)
class SamplesForWeight(Recurrence):
    def counted(self, window: Window) -> Vector:
        return times(super().counted(window), self.problem.total_weight(window) / len(window.batch))


@fault("divides every window's loss by the weight of the first window", _weighted, _totals_differ)
class WeightOfFirstWindow(Recurrence):
    def counted(self, window: Window) -> Vector:
        first = self.problem.total_weight(self.problem.windows[0])
        return times(super().counted(window), self.problem.total_weight(window) / first)


@fault("divides by the weight of rank 0's samples, as if all ranks had the same", _weighted, _distributed)
class WeightOfRankZero(Recurrence):
    def counted(self, window: Window) -> Vector:
        own = sum((window.batch[index].weight for index in chain.from_iterable(window.shares[0])), Fraction(0))
        right = super().counted(window)
        return times(right, self.problem.total_weight(window) / own / window.world_size) if own else right


# Clipping and the loss scale.


@fault("does not clip", _clips)
class NotClipped(Recurrence):
    def clip(self, vector: Affine) -> Affine:
        return vector


@fault("clips gradients that still carry the loss scale", _clips, _scaled)
class ClipBeforeUnscale(Recurrence):
    def clip(self, vector: Affine) -> Affine:
        return super().clip(vector.scaled(self.loss_scale)).scaled(1 / self.loss_scale)


@fault("clips each rank's gradient before averaging over ranks", _clips, _distributed)
class ClipBeforeAllReduce(Recurrence):
    def window_gradient(self, window: Window, weights: Affine) -> Affine:
        return _sum_of_clipped(self, window, weights, window.shares)


@fault("clips every micro-batch's gradient instead of the window's", _clips, _accumulating)
class ClipPerMicroBatch(Recurrence):
    def window_gradient(self, window: Window, weights: Affine) -> Affine:
        return _sum_of_clipped(self, window, weights, list(zip(*window.shares, strict=True)))


def _sum_of_clipped(rule: Recurrence, window: Window, weights: Affine, parts: Sequence[Iterable[Micro]]) -> Affine:
    """The mean of the clipped gradients of ``parts``, which divide up all micro-batches."""
    coefficients, count = rule.coefficients(window), len(parts)
    total = rule.symbols.exactly([Fraction(0)] * len(weights))
    for part in parts:
        own = rule.trained(window, weights, times(_only(coefficients, part), count))
        total = total.plus(rule.clip(own).scaled(Fraction(1, count)))
    return total


@fault(
    "clips each parameter by itself, at a norm that is meant for all of them together",
    _by_norm,
    _has_several_parameters,
)
class ClipsEachParameter(Recurrence):
    def clip(self, vector: Affine) -> Affine:
        return self.joined((super(ClipsEachParameter, self).clip(self.only(vector, [n])), [n]) for n in self.tensors)


@fault("clips each parameter group by itself, at a norm that is meant for all of them together", _by_norm, _has_groups)
class ClipsEachGroup(Recurrence):
    def clip(self, vector: Affine) -> Affine:
        groups = range(1 + len(self.problem.workload.groups))
        own = ([n for n in self.tensors if self.group_of(n) == group] for group in groups)
        return self.joined((super(ClipsEachGroup, self).clip(self.only(vector, some)), some) for some in own)


@fault("clips only the first parameter", _clips, _has_several_parameters)
class ClipsFirstParameter(Recurrence):
    def clip(self, vector: Affine) -> Affine:
        first, others = self.tensors[:1], self.tensors[1:]
        return self.joined([(super().clip(self.only(vector, first)), first), (vector, others)])


@fault("clips gradients of which some still carry the loss scale", _by_norm, _has_several_parameters, _scaled)
class ClipsBeforeAllAreUnscaled(Recurrence):
    def clip(self, vector: Affine) -> Affine:
        first, others = self.tensors[:1], self.tensors[1:]
        clipped = super().clip(self.joined([(vector, first), (vector.scaled(self.loss_scale), others)]))
        return self.joined([(clipped, first), (clipped.scaled(1 / self.loss_scale), others)])


@fault("steps on gradients that still carry the loss scale", _scaled)
class ScaleLeftIn(Recurrence):
    def window_gradient(self, window: Window, weights: Affine) -> Affine:
        return super().window_gradient(window, weights).scaled(self.loss_scale)


# The optimizer and its schedule.


@fault("adds the gradient instead of subtracting it")
class Ascends(Recurrence):
    def update(self, weights: Affine, vector: Affine, step: int) -> Affine:
        return super().update(weights, vector.scaled(Fraction(-1)), step)


@fault("leaves ranks that have run out of data with the weights that they had then", _runs_out)
class LeftBehind(Recurrence):
    def update(self, weights: Affine, vector: Affine, step: int) -> Affine:
        window = self.problem.windows[self.ledger.window]
        return super().update(weights, vector, step) if window.with_data == window.world_size else weights


@fault("applies every gradient twice")
class StepsTwice(Recurrence):
    def update(self, weights: Affine, vector: Affine, step: int) -> Affine:
        return super().update(super().update(weights, vector, step), vector, step)


@fault("forgets the weight decay", _decays)
class NoWeightDecay(Recurrence):
    def optimizer(self, group: int = 0) -> SGD | AdamW:
        return replace(super().optimizer(group), weight_decay=Fraction(0))


@fault("applies the weight decay twice", _decays)
class WeightDecayTwice(Recurrence):
    def optimizer(self, group: int = 0) -> SGD | AdamW:
        right = super().optimizer(group)
        return replace(right, weight_decay=2 * right.weight_decay)


@fault("forgets the momentum", _has_momentum)
class MomentumLost(Recurrence):
    def optimizer(self, group: int = 0) -> SGD | AdamW:
        right = super().optimizer(group)
        return replace(right, momentum=Fraction(0), nesterov=False) if isinstance(right, SGD) else right


@fault("makes the optimizer anew in each epoch, and so forgets its momentum", _has_momentum, _has_epochs)
class MomentumLostInEpochs(Recurrence):
    _epoch = 0

    def update(self, weights: Affine, vector: Affine, step: int) -> Affine:
        epoch = self.problem.windows[self.ledger.window].epoch
        if epoch != self._epoch:
            for rule, _ in self.rules:
                rule.forget()
        self._epoch = epoch
        return super().update(weights, vector, step)


@fault(
    "forgets that the momentum is Nesterov's",
    lambda problem: isinstance(problem.workload.optimizer, SGD) and problem.workload.optimizer.nesterov,
)
class NesterovLost(Recurrence):
    def optimizer(self, group: int = 0) -> SGD | AdamW:
        right = super().optimizer(group)
        return replace(right, nesterov=False) if isinstance(right, SGD) else right


@fault(
    "applies the weight decay to the first parameter group only",
    _decays,
    lambda problem: any(group.weight_decay for group in problem.workload.groups),
)
class DecayForFirstGroup(Recurrence):
    def optimizer_of(self, tensor: int) -> SGD | AdamW:
        right = super().optimizer_of(tensor)
        return replace(right, weight_decay=Fraction(0)) if self.group_of(tensor) else right


@fault(
    "makes parameter groups of its own, and applies the weight decay to the first only",
    _decays,
    _has_several_parameters,
    lambda problem: not problem.workload.groups,
)
class DecayForFirstOwnGroup(Recurrence):
    def optimizer_of(self, tensor: int) -> SGD | AdamW:
        right = super().optimizer_of(tensor)
        own = self.problem.workload.model.tensors[tensor].group(2)
        return replace(right, weight_decay=Fraction(0)) if own else right


@fault("gives all parameter groups the settings of the first", _has_groups)
class GroupsAlike(Recurrence):
    def group_of(self, tensor: int) -> int:
        return 0


@fault("gives all parameter groups the settings of the last", _has_groups)
class GroupsAlikeTheLast(Recurrence):
    def group_of(self, tensor: int) -> int:
        return len(self.problem.workload.groups)


@fault("gives parameter groups each other's settings", _has_groups)
class GroupsSwapped(Recurrence):
    def group_of(self, tensor: int) -> int:
        return len(self.problem.workload.groups) - super().group_of(tensor)


@fault("gives all parameter groups the momentum of the first", _has_momentum, _has_own("momentum"))
class MomentumOfFirstGroup(Recurrence):
    def optimizer_of(self, tensor: int) -> SGD | AdamW:
        right, first = super().optimizer_of(tensor), self.optimizer()
        return replace(right, momentum=first.momentum) if isinstance(right, SGD) and isinstance(first, SGD) else right


@fault("gives all parameter groups the learning-rate schedule of the first", _has_own("schedule"))
class ScheduleOfFirstGroup(Recurrence):
    def schedule(self, group: int = 0) -> Vector | None:
        return super().schedule()


@fault("gives all parameter groups the learning rate of the first", _has_groups)
class LearningRateOfFirstGroup(Recurrence):
    def learning_rate_of(self, tensor: int, step: int) -> Fraction:
        return self.learning_rate(step)


@fault(
    "multiplies gradients by the learning rate before they enter the momentum, which a schedule then does not scale",
    _has_momentum,
    _schedules,
    lambda problem: not problem.workload.groups,
)
class LearningRateInMomentum(Recurrence):
    def optimizer(self, group: int = 0) -> SGD | AdamW:
        return replace(super().optimizer(group), weight_decay=Fraction(0))

    def update(self, weights: Affine, vector: Affine, step: int) -> Affine:
        decayed = vector.plus(weights.scaled(self.problem.workload.optimizer.weight_decay))
        return self.stepped(weights, decayed.scaled(self.learning_rate(step)), lambda tensor: Fraction(1))


@fault("is one step ahead in the learning-rate schedule", _schedules)
class ScheduleAhead(Recurrence):
    def place(self, step: int) -> int:
        return super().place(min(step + 1, self.problem.workload.steps - 1))


@fault("advances the learning-rate schedule for the first parameter group only", _schedules, _has_groups)
class ScheduleForFirstGroup(Recurrence):
    def learning_rate_of(self, tensor: int, step: int) -> Fraction:
        return super().learning_rate_of(tensor, 0 if self.group_of(tensor) else step)


@fault(
    "makes parameter groups of its own, and advances the learning-rate schedule for the first only",
    _schedules,
    _has_several_parameters,
    lambda problem: not problem.workload.groups,
)
class ScheduleForFirstOwnGroup(Recurrence):
    def learning_rate_of(self, tensor: int, step: int) -> Fraction:
        own = self.problem.workload.model.tensors[tensor].group(2)
        return super().learning_rate_of(tensor, 0 if own else step)


@fault(
    "decays the weights by a learning rate that the schedule does not change",
    _decays,
    _schedules,
    lambda problem: isinstance(problem.workload.optimizer, AdamW),
)
class DecayIgnoresSchedule(Recurrence):
    def update(self, weights: Affine, vector: Affine, step: int) -> Affine:
        extra = self.learning_rate(step) - self.learning_rate(0)
        return super().update(weights, vector, step).plus(weights.scaled(extra * self.optimizer().weight_decay))


@fault("advances the learning-rate schedule once per micro-batch", _schedules, _accumulating)
class SchedulePerMicroBatch(Recurrence):
    def place(self, step: int) -> int:
        last = self.problem.workload.steps - 1
        return super().place(min(step * self.problem.layout.accumulation, last))


@fault("begins the learning-rate schedule again in each epoch", _schedules, _has_epochs)
class ScheduleOfEpochs(Recurrence):
    def place(self, step: int) -> int:
        return super().place(step % len(self.problem.workload.batches))


@fault("never advances the learning-rate schedule", _schedules)
class ScheduleIgnored(Recurrence):
    def place(self, step: int) -> int:
        return super().place(0)


# The order of each epoch.


def _shuffles(problem: Problem) -> bool:
    """Not where bfloat16's bound is too wide for batches at weights that they are not designed for."""
    return problem.workload.shuffle and problem.precision.compute is not BF16


def _in_first_order(problem: Problem, window: Window) -> Window:
    """A window as it would be in the first epoch."""
    place = window.index % len(problem.workload.batches)
    return replace(problem.windows[place], index=window.index, epoch=window.epoch)


@fault(
    "reads every epoch in the order of the first one, as its sampler is never told the epoch", _shuffles, _has_epochs
)
class EpochNeverSet(Recurrence):
    def read(self) -> Sequence[Window]:
        return [_in_first_order(self.problem, window) for window in super().read()]


@fault("deals the samples out to each rank in an order of its own, as by another seed", _shuffles, _distributed)
class SeededByRank(Recurrence):
    def read(self) -> Sequence[Window]:
        return [self._of_all_seeds(window) for window in super().read()]

    def _of_all_seeds(self, window: Window) -> Window:
        layout, workload = self.problem.layout, self.problem.workload
        seeded = [layout.window(workload, window.index, rank) for rank in range(layout.world_size)]
        samples = [
            (own.samples[at], own.batch[at]) for rank, own in enumerate(seeded) for at in chain(*own.shares[rank])
        ]
        numbers = iter(range(len(samples)))
        shares = tuple(tuple(tuple(next(numbers) for _ in one) for one in share) for share in window.shares)
        return replace(window, samples=tuple(n for n, _ in samples), batch=tuple(s for _, s in samples), shares=shares)


# What is frozen.


def _freezes(problem: Problem) -> bool:
    return any(tensor.frozen for tensor in problem.workload.model.tensors)


def _unfreezes(problem: Problem) -> bool:
    return problem.workload.unfreeze_at is not None


@fault("trains parameters that are frozen", _freezes)
class FrozenTrained(Recurrence):
    def trains(self, tensor: int, window: int) -> bool:
        return True


@fault("steps frozen parameters as if they had gradients of zero, so that they decay", _freezes, _decays)
class FrozenDecay(Recurrence):
    def steps_on(self, tensor: int) -> bool:
        return True


@fault("never trains the parameters that are unfrozen", _unfreezes)
class NeverUnfreezes(Recurrence):
    def trains(self, tensor: int, window: int) -> bool:
        return super().trains(tensor, 0)


# Formats.


def _fine(problem: Problem) -> bool:
    """Whether the weights need more bits than 16-bit formats have. Rounding in the master format may hide it."""
    workload = problem.workload
    return workload.epochs == 1 and not all(map(BF16.holds, workload.start))


def _data_fit(problem: Problem) -> bool:
    """Whether bfloat16 has all features and targets."""
    samples = chain.from_iterable(problem.workload.batches)
    return all(BF16.holds(value) for sample in samples for value in (*sample.x, sample.y))


@fault("rounds the data to bfloat16", _fine, lambda problem: not (problem.precision.mixed or _data_fit(problem)))
class DataRounded(Recurrence):
    def averaged(self, window: Window, weights: Affine, coefficients: Vector) -> Affine:
        batch = tuple(
            replace(sample, x=tuple(nearest(value, BF16) for value in sample.x), y=nearest(sample.y, BF16))
            for sample in window.batch
        )
        return super().averaged(replace(window, batch=batch), weights, coefficients)


@fault("keeps the weights in 16 bits", _fine)
class WeightsRounded(Recurrence):
    def update(self, weights: Affine, vector: Affine, step: int) -> Affine:
        moved = super().update(weights, vector, step)
        fmt = self.problem.precision.compute if self.problem.precision.mixed else BF16
        return self.symbols.exactly([nearest(value, fmt) for value in moved.center])


@fault("computes without autocast", _fine, _data_fit, lambda problem: problem.precision.mixed)
class NotCast(Recurrence):
    def averaged(self, window: Window, weights: Affine, coefficients: Vector) -> Affine:
        precision = self.problem.precision
        form = self.form(window, coefficients)
        uncast = replace(self.problem, precision=replace(precision, compute=precision.master))
        return gradient(uncast, window, form, weights, self.loss_scale, self.ledger, self.history is not None)


# Stop and resume: what a checkpoint leaves out, or its load does wrong.


def _resumes(problem: Problem) -> bool:
    return problem.resumed_at is not None


def _keeps_state(problem: Problem) -> bool:
    optimizer = problem.workload.optimizer
    return isinstance(optimizer, AdamW) or bool(optimizer.momentum)


@fault("resumes with the weights that training began with", _resumes)
class WeightsNotRestored(Recurrence):
    def resumed(self, weights: Affine, taken: int) -> Affine:
        super().resumed(weights, taken)
        return self.symbols.exactly(self.problem.workload.start)


@fault("resumes without the optimizer's state, its momentum or AdamW's moments", _resumes, _keeps_state)
class OptimizerStateNotRestored(Recurrence):
    def resumed(self, weights: Affine, taken: int) -> Affine:
        for rule, _ in self.rules:
            rule.forget()
        return super().resumed(weights, taken)


@fault(
    "resumes with AdamW's moments, and counts its steps from zero again",
    _resumes,
    lambda problem: isinstance(problem.workload.optimizer, AdamW),
)
class StepCountNotRestored(Recurrence):
    def resumed(self, weights: Affine, taken: int) -> Affine:
        for rule, _ in self.rules:
            if isinstance(rule, AdamWRule):
                rule.steps = 0
        return super().resumed(weights, taken)


@fault("gives all parameter groups the settings of the first once it is resumed", _resumes, _has_groups)
class GroupsAlikeOnceResumed(Recurrence):
    _has_resumed = False

    def resumed(self, weights: Affine, taken: int) -> Affine:
        for rule, _ in self.rules:
            rule.spec = self.optimizer()
        self._has_resumed = True
        return super().resumed(weights, taken)

    def learning_rate_of(self, tensor: int, step: int) -> Fraction:
        return self.learning_rate(step) if self._has_resumed else super().learning_rate_of(tensor, step)


class _Rescheduled(Recurrence):
    """Goes on elsewhere in the learning-rate schedule once it is resumed."""

    _taken: int | None = None

    def resumed(self, weights: Affine, taken: int) -> Affine:
        self._taken = taken
        return super().resumed(weights, taken)

    def place(self, step: int) -> int:
        place = step if self._taken is None else self.resumed_place(step, self._taken)
        return super().place(min(place, self.problem.workload.steps - 1))

    def resumed_place(self, step: int, taken: int) -> int:
        """The place in the schedule of a step after the resume, before which ``taken`` steps were taken."""
        raise NotImplementedError


@fault("begins the learning-rate schedule again when it is resumed", _resumes, _schedules)
class ScheduleNotRestored(_Rescheduled):
    place = _Rescheduled.place

    def resumed_place(self, step: int, taken: int) -> int:
        return step - taken


@fault("is one step ahead in the learning-rate schedule once it is resumed", _resumes, _schedules)
class ScheduleAheadOnceResumed(_Rescheduled):
    place = _Rescheduled.place

    def resumed_place(self, step: int, taken: int) -> int:
        return step + 1


@fault("is one step behind in the learning-rate schedule once it is resumed", _resumes, _schedules)
class ScheduleBehindOnceResumed(_Rescheduled):
    place = _Rescheduled.place

    def resumed_place(self, step: int, taken: int) -> int:
        return step - 1


@fault("takes the first step after a resume at the learning rate that the schedule begins with", _resumes, _schedules)
class FirstRateWhenResumed(_Rescheduled):
    place = _Rescheduled.place

    def resumed_place(self, step: int, taken: int) -> int:
        return 0 if step == taken else step


@fault("resumes with the weights alone, without the optimizer's state and the schedule", _resumes, _keeps_state)
class WeightsAloneRestored(OptimizerStateNotRestored, ScheduleNotRestored):
    resumed, place = OptimizerStateNotRestored.resumed, ScheduleNotRestored.place


@fault(
    "goes on in the order of the first epoch when it is resumed in a later one, as its sampler is not told the epoch",
    _resumes,
    _shuffles,
    lambda problem: problem.resumed_at is not None and problem.windows[problem.resumed_at].epoch > 0,
)
class EpochNotRestored(Recurrence):
    def read_on(self, stop: int) -> Sequence[Window]:
        return [_in_first_order(self.problem, window) for window in super().read_on(stop)]


def _reads_on_in_place(problem: Problem) -> bool:
    """Whether windows have no loss scales, which are known for those that a trainer reads in their place."""
    return _resumes(problem) and not problem.precision.scaled


@fault("reads the data from the beginning again when it is resumed", _reads_on_in_place)
class DataReadAgain(Recurrence):
    def read_on(self, stop: int) -> Sequence[Window]:
        return self.problem.windows

    def place(self, step: int) -> int:
        return super().place(min(step, self.problem.workload.steps - 1))


@fault("trains on the last window before the stop again when it is resumed", _reads_on_in_place)
class WindowReadAgain(DataReadAgain):
    place = DataReadAgain.place

    def read_on(self, stop: int) -> Sequence[Window]:
        return self.problem.windows[stop - 1 :]


@fault("leaves out a window when it is resumed", _reads_on_in_place)
class WindowLeftOut(Recurrence):
    def read_on(self, stop: int) -> Sequence[Window]:
        return self.problem.windows[stop + 1 :]
