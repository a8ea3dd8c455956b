"""Known bugs with frozen parameters, parameter groups, and the optimizer's steps and state."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

from conformance.oracle.affine import Affine
from conformance.oracle.faults.catalogue import (
    Condition,
    clips,
    decays,
    fault,
    has_groups,
    has_momentum,
    invites_groups,
    runs_out,
    schedules,
)
from conformance.oracle.recurrence import Recurrence
from conformance.workloads.problem import Problem
from conformance.workloads.workload import SGD, Optimizer, Vector


def _freezes(problem: Problem) -> bool:
    return any(tensor.frozen for tensor in problem.workload.model.tensors)


def _unfreezes(problem: Problem) -> bool:
    return problem.workload.unfreeze_at is not None


@fault(
    "trains frozen parameters",
    _freezes,
    fix="leave `requires_grad` of frozen parameters False",
    why="Frozen parameters get gradients, so the step moves them",
    edit="change the frozen parameters above step",
)
class FrozenTrained(Recurrence):
    def trains(self, tensor: int, window: int) -> bool:
        return True


@fault(
    "steps frozen parameters with zero gradients, so weight decay changes them",
    _freezes,
    decays,
    fix="leave gradients of frozen parameters None, so no step changes them",
    why="A zero gradient is not None: the step still decays the parameter",
    edit="change gradient; change the frozen parameters above step",
)
class FrozenDecay(Recurrence):
    def steps_on(self, tensor: int) -> bool:
        return True


@fault(
    "never trains parameters after they are unfrozen",
    _unfreezes,
    fix="give unfrozen parameters to the optimizer, with `add_param_group` or from the start",
    why="The optimizer does not hold these parameters, so they never change",
    edit="find `requires_grad_` at or above step",
)
class NeverUnfreezes(Recurrence):
    def trains(self, tensor: int, window: int) -> bool:
        return super().trains(tensor, 0)


@fault(
    "unfreezes parameters one window too late",
    _unfreezes,
    fix="unfreeze before the forward pass of the first window that trains the parameters",
    why="The first window that should train these parameters gives them no gradient",
    edit="find `requires_grad` at or above forward",
)
class UnfreezesLate(Recurrence):
    def trains(self, tensor: int, window: int) -> bool:
        return super().trains(tensor, window - 1)


@fault(
    "recreates the optimizer when it unfreezes parameters, and loses the momentum",
    _unfreezes,
    has_momentum,
    fix="keep the optimizer and its state; `add_param_group` is for parameters that it does not have yet",
    why="A new optimizer starts with an empty momentum",
    edit="change optimizer; change the optimizer's creation above step",
)
class StateLostWhenUnfreezing(Recurrence):
    def update(self, weights: Affine, vector: Affine, step: int) -> Affine:
        if self.window.index == self.problem.workload.unfreeze_at:
            for rule, _ in self.rules:
                rule.forget()
        return super().update(weights, vector, step)


@fault(
    "restarts the learning-rate schedule when it unfreezes parameters",
    _unfreezes,
    schedules,
    at="schedule",
    fix="keep the schedule when you unfreeze parameters",
    why="A new schedule starts at the initial learning rate again",
    edit="change rate; change scheduler; change the schedule's creation above schedule",
)
class ScheduleBegunAgainWhenUnfreezing(Recurrence):
    def place(self, step: int) -> int:
        first = self.problem.workload.unfreeze_at or 0
        return super().place(step - first if step >= first else step)


@fault(
    "leaves unfrozen parameters out of the learning-rate schedule",
    _unfreezes,
    schedules,
    at="schedule",
    fix="let the schedule set the rate of groups that are added later",
    why="The schedule does not know the added group, whose rate stays at its first value",
    edit="change rate|schedule",
)
class ScheduleWithoutUnfrozen(Recurrence):
    def learning_rate_of(self, tensor: int, step: int) -> Fraction:
        return super().learning_rate_of(tensor, step if self.trains(tensor, 0) else 0)


@fault(
    "clips only the parameters that are trainable from the start",
    _unfreezes,
    clips,
    at="clip",
    fix="clip `model.parameters()` as they are at each step",
    why="The list of clipped parameters was made before some were unfrozen, so these are not cut",
    edit="change clip|gradient",
)
class ClipsWhatWasTrainedAtFirst(Recurrence):
    def clip(self, vector: Affine) -> Affine:
        first = [n for n in self.tensors if self.trains(n, 0)]
        late = [n for n in self.tensors if n not in first]
        return self.joined([(super().clip(self.only(vector, first)), first), (vector, late)])


def _has_own(setting: str) -> Condition:
    """Whether a parameter group has its own momentum or schedule."""
    return lambda problem: any(getattr(group, setting) is not None for group in problem.workload.groups)


@fault(
    "applies weight decay only to the first parameter group",
    decays,
    lambda problem: any(group.weight_decay for group in problem.workload.groups),
    fix="set `weight_decay` in each parameter group",
    why="The other groups' weights do not shrink",
    edit="change optimizer; change the optimizer's settings above step",
)
class DecayForFirstGroup(Recurrence):
    def optimizer_of(self, tensor: int) -> Optimizer:
        right = super().optimizer_of(tensor)
        return replace(right, weight_decay=Fraction(0)) if self.group_of(tensor) else right


@fault(
    "makes its own parameter groups, and applies weight decay only to the first",
    decays,
    invites_groups,
    fix="set `weight_decay` in each parameter group",
    why="The other groups' weights do not shrink",
    edit="change optimizer; change the optimizer's settings above step",
)
class DecayForFirstOwnGroup(Recurrence):
    def optimizer_of(self, tensor: int) -> Optimizer:
        right = super().optimizer_of(tensor)
        own = self.problem.workload.model.tensors[tensor].group(2)
        return replace(right, weight_decay=Fraction(0)) if own else right


@fault(
    "gives all parameter groups the settings of the first",
    has_groups,
    fix="pass the task's parameter groups to the optimizer unchanged",
    why="The first group's settings apply to the parameters of all groups",
    edit="change optimizer; change the optimizer's settings above step",
)
class GroupsAlike(Recurrence):
    def group_of(self, tensor: int) -> int:
        return 0


@fault(
    "gives all parameter groups the settings of the last",
    has_groups,
    fix="pass the task's parameter groups to the optimizer unchanged",
    why="The last group's settings apply to the parameters of all groups",
    edit="change optimizer; change the optimizer's settings above step",
)
class GroupsAlikeTheLast(Recurrence):
    def group_of(self, tensor: int) -> int:
        return len(self.problem.workload.groups)


@fault(
    "swaps the settings of parameter groups",
    has_groups,
    fix="pass the task's parameter groups to the optimizer in their order",
    why="Each group steps with the settings of another one",
    edit="change optimizer; change the optimizer's settings above step",
)
class GroupsSwapped(Recurrence):
    def group_of(self, tensor: int) -> int:
        return len(self.problem.workload.groups) - super().group_of(tensor)


@fault(
    "gives all parameter groups the momentum of the first",
    has_momentum,
    _has_own("momentum"),
    fix="give each parameter group its own `momentum`",
    why="The first group's momentum applies to the parameters of all groups",
    edit="change optimizer; change the optimizer's settings above step",
)
class MomentumOfFirstGroup(Recurrence):
    def optimizer_of(self, tensor: int) -> Optimizer:
        right, first = super().optimizer_of(tensor), self.optimizer()
        return replace(right, momentum=first.momentum) if isinstance(right, SGD) and isinstance(first, SGD) else right


@fault(
    "gives all parameter groups the learning-rate schedule of the first",
    _has_own("schedule"),
    fix="let the schedule set each group's rate",
    why="The first group's schedule sets the learning rate of all groups",
    edit="change rate|schedule",
)
class ScheduleOfFirstGroup(Recurrence):
    def schedule(self, group: int = 0) -> Vector | None:
        return super().schedule()


@fault(
    "gives all parameter groups the learning rate of the first",
    has_groups,
    fix="give each parameter group its own `lr`",
    why="The first group's learning rate applies to the parameters of all groups",
    edit="change rate; change optimizer; change the optimizer's settings above step",
)
class LearningRateOfFirstGroup(Recurrence):
    def base_rate(self, group: int = 0) -> Fraction:
        return super().base_rate()


def _has_other_rates_later(problem: Problem) -> bool:
    return has_groups(problem) and problem.workload.steps > 1


@fault(
    "gives all parameter groups the learning rate of the first after its first step",
    _has_other_rates_later,
    fix="give each parameter group its own `lr`",
    why="After a step, one rate is written into all groups, for the next step",
    edit="change rate; change optimizer; change the optimizer's settings above step",
)
class LearningRateOfFirstGroupLater(Recurrence):
    def learning_rate(self, step: int, group: int = 0) -> Fraction:
        return super().learning_rate(step, group if step == 0 else 0)


def _passes_again(problem: Problem) -> bool:
    return problem.workload.epochs > 1


def _has_state(problem: Problem) -> bool:
    return has_momentum(problem) or not isinstance(problem.workload.optimizer, SGD)


@fault(
    "adds the gradient instead of subtracting it",
    fix="subtract the gradient; minimize the loss, not its negative",
    why="The update has the right size and the wrong sign, so the loss grows",
    edit="change optimizer; change step",
)
class Ascends(Recurrence):
    def update(self, weights: Affine, vector: Affine, step: int) -> Affine:
        return super().update(weights, vector.scaled(Fraction(-1)), step)


@fault(
    "stops updating ranks that run out of data",
    runs_out,
    fix="step on all ranks until the last one has no data: DDP's `join()`",
    why="A rank without data stops stepping, so it keeps old weights",
    edit="change step",
)
class LeftBehind(Recurrence):
    def update(self, weights: Affine, vector: Affine, step: int) -> Affine:
        has_all = self.window.with_data == self.window.world_size
        return super().update(weights, vector, step) if has_all else weights


@fault(
    "applies every gradient twice",
    fix="call `optimizer.step()` once a window",
    why="The second call uses the same gradients again: the weights move twice",
    edit="remove step",
)
class StepsTwice(Recurrence):
    def update(self, weights: Affine, vector: Affine, step: int) -> Affine:
        return super().update(super().update(weights, vector, step), vector, step)


@fault(
    "ignores the weight decay",
    decays,
    fix="pass `weight_decay` to the optimizer",
    why="The weights do not shrink",
    edit="change optimizer; change the optimizer's settings above step",
)
class NoWeightDecay(Recurrence):
    def optimizer(self, group: int = 0) -> Optimizer:
        return replace(super().optimizer(group), weight_decay=Fraction(0))


@fault(
    "applies the weight decay twice",
    decays,
    fix="decay in the optimizer or in the loss, not in both",
    why="The weights shrink twice in each step",
    edit="change optimizer; change the optimizer's settings above step",
)
class WeightDecayTwice(Recurrence):
    def optimizer(self, group: int = 0) -> Optimizer:
        right = super().optimizer(group)
        return replace(right, weight_decay=2 * right.weight_decay)


@fault(
    "ignores the momentum",
    has_momentum,
    fix="keep one optimizer for all steps, with its `momentum`",
    why="Each step uses the new gradient alone, without those of earlier steps",
    edit="change alias; change optimizer; change the optimizer's settings above step",
)
class MomentumLost(Recurrence):
    def optimizer(self, group: int = 0) -> Optimizer:
        right = super().optimizer(group)
        return replace(right, momentum=Fraction(0), nesterov=False) if isinstance(right, SGD) else right


@fault(
    "recreates the optimizer in each epoch, and loses its state",
    _has_state,
    _passes_again,
    fix="create the optimizer once, before the first epoch",
    why="A new optimizer starts each epoch with an empty state",
    edit="change optimizer; change the optimizer's creation above step",
)
class StateLostInEpochs(Recurrence):
    _epoch = 0

    def update(self, weights: Affine, vector: Affine, step: int) -> Affine:
        epoch = self.window.epoch
        if epoch != self._epoch:
            for rule, _ in self.rules:
                rule.forget()
        self._epoch = epoch
        return super().update(weights, vector, step)


def _changes_rates(problem: Problem) -> bool:
    places = [
        window.epoch if problem.workload.schedule_by == "epoch" else step for step, window in enumerate(problem.windows)
    ]
    return any(one[a] != one[b] for one in problem.workload.schedules for a, b in pairwise(places))


@fault(
    "loses the optimizer's state when the learning rate changes",
    _has_state,
    _changes_rates,
    fix="change `lr` in the optimizer's groups; keep the optimizer and its state",
    why="The first step at a new learning rate has an empty state",
    edit="change optimizer; change the optimizer's creation above step",
)
class StateLostWhenRateChanges(Recurrence):
    _rates: tuple[Fraction, ...] = ()

    def update(self, weights: Affine, vector: Affine, step: int) -> Affine:
        rates = tuple(self.learning_rate_of(tensor, step) for tensor in self.tensors)
        for rule, _ in self.rules if self._rates not in ((), rates) else ():
            rule.forget()
        self._rates = rates
        return super().update(weights, vector, step)
