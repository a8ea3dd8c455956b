"""Known bugs in the inputs of gradients: the weights, the order of the data, and the formats of both."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import replace
from itertools import chain

from conformance.oracle.affine import Affine
from conformance.oracle.faults.catalogue import (
    computes_precisely,
    computes_roughly,
    distributed,
    fault,
    has_epochs,
    has_wide_bounds,
)
from conformance.oracle.gradient import gradient
from conformance.oracle.recurrence import Recurrence
from conformance.oracle.rounding import cast, nearest
from conformance.workloads.layout import Window, window_of
from conformance.workloads.precision import BF16
from conformance.workloads.problem import Problem
from conformance.workloads.workload import SGD, Sample, Vector


def _steps_again(problem: Problem) -> bool:
    return problem.workload.steps > 1


def has_room_for_other_weights(problem: Problem) -> bool:
    """False if bfloat16's bound is too wide for batches at weights that they are not designed for."""
    return not (problem.workload.shuffle and problem.precision.compute is BF16)


def _has_layers(problem: Problem) -> bool:
    return len(problem.workload.model.layers) > 1


@fault(
    "computes each gradient at the weights before the last step",
    _steps_again,
    has_room_for_other_weights,
    fix="compute each window's gradients after the last window's step",
    why="The gradients belong to weights that the last step has already changed",
    # In 16 bits the bound of AdamW is too wide to tell.
    is_fine=lambda problem: not isinstance(problem.workload.optimizer, SGD),
    edit="change backward",
)
class StaleWeights(Recurrence):
    _before: Affine | None = None

    def window_gradient(self, window: Window, weights: Affine) -> Affine:
        before, self._before = self._before or weights, weights
        return super().window_gradient(window, before)


@fault(
    "computes each gradient at the initial weights",
    _steps_again,
    is_fine=has_wide_bounds,
    fix="read the weights in each window: a copy of them does not follow the optimizer's steps",
    why="The gradients belong to weights that no step has changed",
)
class InitialWeights(Recurrence):
    def window_gradient(self, window: Window, weights: Affine) -> Affine:
        return super().window_gradient(window, self.symbols.exactly(self.problem.workload.start))


@fault(
    "adds the gradients of all earlier windows",
    _steps_again,
    is_fine=has_wide_bounds,
    fix="clear the gradients, or the buffers that accumulate them, after each step",
    why="Each step uses its own gradients and all those before again",
)
class NeverCleared(Recurrence):
    _used: Affine | None = None

    def trained(self, window: Window, weights: Affine, coefficients: Vector) -> Affine:
        vector = super().trained(window, weights, coefficients)
        return vector if self._used is None else vector.plus(self._used.scaled(1 / self.loss_scale))

    def window_gradient(self, window: Window, weights: Affine) -> Affine:
        self._used = super().window_gradient(window, weights)
        return self._used


@fault(
    "steps between a forward and its backward, so the backward uses newer weights",
    _has_layers,
    _steps_again,
    fix="finish forward and backward of a window before its step",
    why="The backward mixes activations of old weights with new weights",
    edit="step below backward",
)
class StaleForward(Recurrence):
    _before: Affine | None = None

    def window_gradient(self, window: Window, weights: Affine) -> Affine:
        before, self._before = self._before or weights, weights
        return self.clip(_backward_at(self, window, before, weights))


def _backward_at(rule: Recurrence, window: Window, weights: Affine, backward: Affine) -> Affine:
    """The gradient of a forward at ``weights`` with a backward at other weights."""
    form, finite = rule.form(window, rule.coefficients(window)), rule.history is not None
    return gradient(rule.problem, window, form, weights, rule.loss_scale, rule.ledger, finite, backward)


@fault(
    "steps the last layer before the gradients of the earlier layers are computed",
    _has_layers,
    fix="step after the backward pass of all layers",
    why="Earlier layers get gradients through a last layer that has already moved",
    edit="step below backward",
)
class LastLayerSteppedFirst(Recurrence):
    def window_gradient(self, window: Window, weights: Affine) -> Affine:
        right, others, last = super().window_gradient(window, weights), self.tensors[:-1], self.tensors[-1:]
        # A step changes the optimizer's state, so step copies; the real step with all parameters comes later.
        tried = self.joined(
            (copy(rule).step(weights, right, self.learning_rate_of(own[0], self.taken)), own)
            for rule, own in self.rules
        )
        stepped = self.joined([(weights, others), (tried, last)])
        return self.joined([(self.clip(_backward_at(self, window, weights, stepped)), others), (right, last)])


def shuffles(problem: Problem) -> bool:
    return problem.workload.shuffle and problem.in_order and has_room_for_other_weights(problem)


def in_first_order(problem: Problem, window: Window) -> Window:
    """A window as it would be in the first epoch."""
    place = window.index % problem.workload.windows_of_epoch
    windows = problem.windows_of_lives[problem.life_of(window.index)]
    first = next(one for one in windows if one.index == place)
    return replace(first, index=window.index, epoch=window.epoch)


@fault(
    "reads every epoch in the order of the first, without calling `set_epoch`",
    shuffles,
    has_epochs,
    fix="call `sampler.set_epoch(epoch)` at the start of each epoch",
    why="The sampler's order depends on its epoch, which stays 0",
    edit="add `sampler.set_epoch(epoch)` above epoch; change loader; change the order of the data above forward",
)
class EpochNeverSet(Recurrence):
    def read(self) -> Sequence[Window]:
        return [in_first_order(self.problem, window) for window in super().read()]


@fault(
    "shuffles with a different seed on each rank",
    shuffles,
    distributed,
    fix="give the samplers of all ranks one seed",
    why="With different orders, the ranks' parts overlap: some samples are read twice, others never",
    edit="change loader; change the sampler's seed above forward",
)
class SeededByRank(Recurrence):
    def read(self) -> Sequence[Window]:
        return [self._of_all_seeds(window) for window in super().read()]

    def _of_all_seeds(self, window: Window) -> Window:
        # After a stop, other ranks may read windows from before it.
        layout = next(one for one in self.problem.layouts if one.world_size == window.world_size)
        workload, parts = self.problem.workload, []
        for rank, share in enumerate(window.numbers):
            order = list(chain(*layout.window(workload, window.index, rank).numbers[rank]))
            # A padded window has more samples, and one of only whole micro-batches has fewer.
            read = iter(order + list(chain(*share))[len(order) :])
            parts.append([[next(read) for _ in one] for one in share])
        return window_of(workload, window.index, window.epoch, parts, window.nominal)


def _fine(problem: Problem) -> bool:
    """Whether the weights need more bits than 16-bit formats have. Rounding in the master format may hide the bug."""
    workload = problem.workload
    return workload.epochs == 1 and not all(map(BF16.holds, workload.start))


def _data_fit(problem: Problem) -> bool:
    """Whether bfloat16 represents all features and targets exactly."""
    return all(BF16.holds(value) for sample in problem.workload.data for value in (*sample.x, sample.y))


class _OfOtherData(Recurrence):
    """Trains on other samples in the places of the correct ones."""

    def averaged(self, window: Window, weights: Affine, coefficients: Vector) -> Affine:
        return super().averaged(replace(window, batch=tuple(self.batch(window))), weights, coefficients)

    def batch(self, window: Window) -> Iterable[Sample]:
        """The samples that the trainer has instead of ``window.batch``."""
        raise NotImplementedError


@fault(
    "rounds the data to bfloat16",
    _fine,
    lambda problem: not (problem.precision.mixed or _data_fit(problem)),
    fix="keep inputs and targets in the case's precision; autocast casts where it should",
    why="bfloat16 has 8 significant bits, so inputs and targets change by up to 0.4%",
    edit="change the casts above forward",
)
class DataRounded(_OfOtherData):
    def batch(self, window: Window) -> Iterable[Sample]:
        for sample in window.batch:
            yield replace(sample, x=tuple(nearest(value, BF16) for value in sample.x), y=nearest(sample.y, BF16))


@fault(
    "pairs each sample with the target of the next one in its micro-batch",
    lambda problem: problem.layout.micro_batch_size > 1,
    computes_precisely,
    fix="pair each output with the target of its own sample; shift nothing twice",
    why="Each error is taken against another sample's target",
    edit="find the targets at or above backward",
)
class TargetsOfNextSamples(_OfOtherData):
    def batch(self, window: Window) -> Iterable[Sample]:
        following = {
            index: own[(place + 1) % len(own)] for own in chain(*window.shares) for place, index in enumerate(own)
        }
        for index, sample in enumerate(window.batch):
            yield replace(sample, y=window.batch[following[index]].y)


@fault(
    "rounds the weights to 16 bits",
    _fine,
    fix="keep the weights in the case's precision; autocast casts copies of them",
    why="16 bits cannot hold small updates, so they are rounded away",
    edit="change outside; find the rounding at or above weights; change step",
)
class WeightsRounded(Recurrence):
    def update(self, weights: Affine, vector: Affine, step: int) -> Affine:
        moved = super().update(weights, vector, step)
        fmt = self.problem.precision.compute if self.problem.precision.mixed else BF16
        return cast(moved, fmt)


@fault(
    "computes without autocast",
    _fine,
    _data_fit,
    computes_roughly,
    fix="run forward and loss within `torch.autocast`",
    why="Without autocast nothing is rounded to 16 bits",
    edit="add autocast above forward",
)
class NotCast(Recurrence):
    def averaged(self, window: Window, weights: Affine, coefficients: Vector) -> Affine:
        precision = self.problem.precision
        form = self.form(window, coefficients)
        uncast = replace(self.problem, precision=replace(precision, compute=precision.master))
        return gradient(uncast, window, form, weights, self.loss_scale, self.ledger, self.history is not None)
