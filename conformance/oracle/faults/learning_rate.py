"""Known bugs of the learning rate and its schedule."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import cached_property

from conformance.oracle.affine import Affine
from conformance.oracle.faults.catalogue import (
    RARE,
    accumulating,
    decays,
    fault,
    has_epochs,
    has_groups,
    has_momentum,
    invites_groups,
    schedules,
)
from conformance.oracle.faults.checkpoints import RateAloneRestored, has_other_rates_later, resumes
from conformance.oracle.optimizers import Rule
from conformance.oracle.recurrence import Recurrence
from conformance.workloads.problem import Problem
from conformance.workloads.workload import AdamW, Optimizer


def _schedules_epochs(problem: Problem) -> bool:
    return bool(problem.workload.schedules) and problem.workload.schedule_by == "epoch"


def _has_other_rates_further_on(problem: Problem) -> bool:
    """Whether some window gets another rate if the schedule also advances at each end of an epoch."""
    last = problem.workload.steps - 1
    return any(
        schedule[min(step + window.epoch, last)] != schedule[step]
        for schedule in problem.workload.schedules
        for step, window in enumerate(problem.windows)
    )


@fault(
    "multiplies gradients by the learning rate before the momentum, so a schedule does not scale the momentum",
    has_momentum,
    schedules,
    lambda problem: not problem.workload.groups,
    fix="multiply the momentum, not the gradient, by the learning rate",
    why="The momentum keeps the learning rates of earlier steps instead of the present one",
    edit="find the formula at or above weights; find the formula in step",
)
class LearningRateInMomentum(Recurrence):
    def optimizer(self, group: int = 0) -> Optimizer:
        return replace(super().optimizer(group), weight_decay=Fraction(0))

    def update(self, weights: Affine, vector: Affine, step: int) -> Affine:
        decayed = vector.plus(weights.scaled(self.problem.workload.optimizer.weight_decay))
        return self.stepped(weights, decayed.scaled(self.learning_rate(step)), lambda tensor: Fraction(1))


@fault(
    "is one step ahead in the learning-rate schedule",
    schedules,
    at="schedule",
    fix="call `scheduler.step()` after `optimizer.step()`",
    why="Each step uses the learning rate of the next one",
    edit="schedule below step",
)
class ScheduleAhead(Recurrence):
    def place(self, step: int) -> int:
        return super().place(min(step + 1, self.problem.workload.steps - 1))


@fault(
    "is one step behind in the learning-rate schedule",
    schedules,
    at="schedule",
    fix="set the rate of a step before it, from the number of steps taken so far",
    why="Each step uses the learning rate of the one before",
    edit='change rate; change schedule; find `["lr"]` at or above step',
    among=RARE,
)
class ScheduleBehind(Recurrence):
    def place(self, step: int) -> int:
        return super().place(max(step - 1, 0))


@fault(
    "advances the learning-rate schedule only for the first parameter group",
    schedules,
    has_groups,
    at="schedule",
    fix="advance the rate of all parameter groups",
    why="The other groups keep their initial learning rate",
    edit="change rate|schedule",
)
class ScheduleForFirstGroup(Recurrence):
    def learning_rate_of(self, tensor: int, step: int) -> Fraction:
        return super().learning_rate_of(tensor, 0 if self.group_of(tensor) else step)


@fault(
    "makes its own parameter groups, and advances the learning-rate schedule only for the first",
    schedules,
    invites_groups,
    at="schedule",
    fix="advance the rate of all parameter groups",
    why="The other groups keep their initial learning rate",
    edit="change rate|schedule",
)
class ScheduleForFirstOwnGroup(Recurrence):
    def learning_rate_of(self, tensor: int, step: int) -> Fraction:
        own = self.problem.workload.model.tensors[tensor].group(2)
        return super().learning_rate_of(tensor, 0 if own else step)


@fault(
    "decays the weights with the initial learning rate instead of the scheduled one",
    decays,
    schedules,
    lambda problem: isinstance(problem.workload.optimizer, AdamW),
    fix="decay by `lr * weight_decay` with the present `lr`",
    why="Decay is `lr * weight_decay`; with the initial `lr`, it does not follow the schedule",
    edit="find the formula at or above weights; find the formula in step",
)
class DecayIgnoresSchedule(Recurrence):
    def update(self, weights: Affine, vector: Affine, step: int) -> Affine:
        extra = self.learning_rate(step) - self.learning_rate(0)
        return super().update(weights, vector, step).plus(weights.scaled(extra * self.optimizer().weight_decay))


@fault(
    "advances the learning-rate schedule once per micro-batch",
    schedules,
    accumulating,
    at="schedule",
    fix="call `scheduler.step()` once a window, after the step",
    why="A window moves the schedule by its number of micro-batches instead of by 1",
    edit="schedule below step",
)
class SchedulePerMicroBatch(Recurrence):
    def place(self, step: int) -> int:
        last = self.problem.workload.steps - 1
        return super().place(min(step * self.problem.layout.accumulation, last))


@fault(
    "advances the learning-rate schedule twice in each window",
    schedules,
    at="schedule",
    fix="call `scheduler.step()` once a window; remove the other call",
    why="Each window moves the schedule by 2 instead of 1",
    edit="remove schedule",
)
class ScheduleTwice(Recurrence):
    def place(self, step: int) -> int:
        return super().place(min(2 * step, self.problem.workload.steps - 1))


@fault(
    "restarts the learning-rate schedule in each epoch",
    schedules,
    has_epochs,
    at="schedule",
    fix="create the schedule once, before the first epoch",
    why="A new schedule in each epoch starts at the initial learning rate again",
    edit="change rate; change scheduler; change the schedule's creation above schedule",
)
class ScheduleOfEpochs(Recurrence):
    def place(self, step: int) -> int:
        epochs = [window.epoch for window in self.problem.windows]
        return super().place(step - epochs.index(epochs[step]) if step < len(epochs) else 0)


@fault(
    "also advances the learning-rate schedule after each epoch",
    schedules,
    _has_other_rates_further_on,
    at="schedule",
    fix="call `scheduler.step()` after each step, and not after an epoch",
    why="Each epoch moves the schedule by one step too many",
    edit="remove schedule",
)
class ScheduleAfterEpochsToo(Recurrence):
    def place(self, step: int) -> int:
        windows = self.problem.windows
        ended = windows[min(step, len(windows) - 1)].epoch
        return super().place(min(step + ended, self.problem.workload.steps - 1))


@fault(
    "keeps the first learning rate of the schedule",
    schedules,
    fix="call `scheduler.step()` after each step of this optimizer, and read `lr` from its groups in each step",
    why="All steps use the first learning rate",
    edit="change unused; schedule below step",
)
class ScheduleIgnored(Recurrence):
    def place(self, step: int) -> int:
        return super().place(0)


@fault(
    "advances a per-epoch learning-rate schedule within epochs",
    _schedules_epochs,
    fix="call `scheduler.step()` once an epoch",
    why="The learning rate changes inside an epoch, not at its end",
    edit="change rate|schedule",
)
class ScheduleWithinEpochs(Recurrence):
    def place(self, step: int) -> int:
        return min(step, self.problem.workload.epochs - 1)


@fault(
    "advances a per-epoch learning-rate schedule before each epoch instead of after it",
    _schedules_epochs,
    at="schedule",
    fix="call `scheduler.step()` at the end of an epoch",
    why="The first epoch already uses the second epoch's learning rate",
    edit="change rate|schedule",
)
class ScheduleBeforeEpochs(Recurrence):
    def place(self, step: int) -> int:
        return min(super().place(step) + 1, self.problem.workload.epochs - 1)


@fault(
    "keeps the first learning rate of a per-epoch schedule",
    _schedules_epochs,
    fix="call `scheduler.step()` once an epoch",
    why="Without `scheduler.step()`, all epochs use the first learning rate",
    edit="schedule below step",
)
class EpochScheduleIgnored(Recurrence):
    def place(self, step: int) -> int:
        return 0


@fault(
    "restarts the learning-rate schedule of its second optimizer after a resume",
    resumes,
    schedules,
    invites_groups,
    has_other_rates_later,
    fix="save and load the `state_dict` of each optimizer's schedule",
    why="The optimizer restores its present rate; its new schedule then counts from 0",
    edit="restore scheduler",
)
class ScheduleOfPartNotRestored(RateAloneRestored):
    _is_of_part = False

    @cached_property
    def rules(self) -> list[tuple[Rule, list[int]]]:
        return [(self.rule(self.optimizer_of(tensor)), [tensor]) for tensor in self.tensors]

    def learning_rate_of(self, tensor: int, step: int) -> Fraction:
        self._is_of_part = bool(self.problem.workload.model.tensors[tensor].group(2))
        return super().learning_rate_of(tensor, step)

    def resumed_place(self, step: int, taken: int) -> int:
        return super().resumed_place(step, taken) if self._is_of_part else step
