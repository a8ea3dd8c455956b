"""Parameter groups and their settings."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from conformance.oracle.faults.catalogue import Condition, fault
from conformance.oracle.faults.conditions import decays, has_groups, has_momentum, invites_groups
from conformance.oracle.recurrence import Recurrence
from conformance.workloads.workload import SGD, Optimizer, Vector


def _has_own(setting: str) -> Condition:
    """Whether a parameter group has a momentum or a schedule of its own."""
    return lambda problem: any(getattr(group, setting) is not None for group in problem.workload.groups)


@fault(
    "applies the weight decay to the first parameter group only",
    decays,
    lambda problem: any(group.weight_decay for group in problem.workload.groups),
)
class DecayForFirstGroup(Recurrence):
    def optimizer_of(self, tensor: int) -> Optimizer:
        right = super().optimizer_of(tensor)
        return replace(right, weight_decay=Fraction(0)) if self.group_of(tensor) else right


@fault(
    "makes parameter groups of its own, and applies the weight decay to the first only",
    decays,
    invites_groups,
)
class DecayForFirstOwnGroup(Recurrence):
    def optimizer_of(self, tensor: int) -> Optimizer:
        right = super().optimizer_of(tensor)
        own = self.problem.workload.model.tensors[tensor].group(2)
        return replace(right, weight_decay=Fraction(0)) if own else right


@fault("gives all parameter groups the settings of the first", has_groups)
class GroupsAlike(Recurrence):
    def group_of(self, tensor: int) -> int:
        return 0


@fault("gives all parameter groups the settings of the last", has_groups)
class GroupsAlikeTheLast(Recurrence):
    def group_of(self, tensor: int) -> int:
        return len(self.problem.workload.groups)


@fault("gives parameter groups each other's settings", has_groups)
class GroupsSwapped(Recurrence):
    def group_of(self, tensor: int) -> int:
        return len(self.problem.workload.groups) - super().group_of(tensor)


@fault("gives all parameter groups the momentum of the first", has_momentum, _has_own("momentum"))
class MomentumOfFirstGroup(Recurrence):
    def optimizer_of(self, tensor: int) -> Optimizer:
        right, first = super().optimizer_of(tensor), self.optimizer()
        return replace(right, momentum=first.momentum) if isinstance(right, SGD) and isinstance(first, SGD) else right


@fault("gives all parameter groups the learning-rate schedule of the first", _has_own("schedule"))
class ScheduleOfFirstGroup(Recurrence):
    def schedule(self, group: int = 0) -> Vector | None:
        return super().schedule()


@fault("gives all parameter groups the learning rate of the first", has_groups)
class LearningRateOfFirstGroup(Recurrence):
    def base_rate(self, group: int = 0) -> Fraction:
        return super().base_rate()
