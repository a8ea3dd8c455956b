"""Stop and resume: what a checkpoint leaves out, or its load does wrong."""

from __future__ import annotations

from fractions import Fraction

from conformance.oracle.affine import Affine
from conformance.oracle.faults.catalogue import fault
from conformance.oracle.faults.conditions import has_groups, schedules
from conformance.oracle.optimizers import AdamWRule
from conformance.oracle.recurrence import Recurrence
from conformance.workloads.problem import Problem
from conformance.workloads.workload import SGD, AdamW


def resumes(problem: Problem) -> bool:
    return problem.resumed_at is not None


def _keeps_state(problem: Problem) -> bool:
    optimizer = problem.workload.optimizer
    return not isinstance(optimizer, SGD) or bool(optimizer.momentum)


@fault("resumes with the weights that training began with", resumes)
class WeightsNotRestored(Recurrence):
    def resumed(self, weights: Affine, taken: int) -> Affine:
        super().resumed(weights, taken)
        return self.symbols.exactly(self.problem.workload.start)


@fault("resumes without the optimizer's state, its momentum, AdamW's moments or Adagrad's sums", resumes, _keeps_state)
class OptimizerStateNotRestored(Recurrence):
    def resumed(self, weights: Affine, taken: int) -> Affine:
        for rule, _ in self.rules:
            rule.forget()
        return super().resumed(weights, taken)


@fault(
    "resumes with AdamW's moments, and counts its steps from zero again",
    resumes,
    lambda problem: isinstance(problem.workload.optimizer, AdamW),
)
class StepCountNotRestored(Recurrence):
    def resumed(self, weights: Affine, taken: int) -> Affine:
        for rule, _ in self.rules:
            if isinstance(rule, AdamWRule):
                rule.steps = 0
        return super().resumed(weights, taken)


@fault("gives all parameter groups the settings of the first once it is resumed", resumes, has_groups)
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


@fault("begins the learning-rate schedule again when it is resumed", resumes, schedules)
class ScheduleNotRestored(_Rescheduled):
    def resumed_place(self, step: int, taken: int) -> int:
        return step - taken


@fault("is one step ahead in the learning-rate schedule once it is resumed", resumes, schedules)
class ScheduleAheadOnceResumed(_Rescheduled):
    def resumed_place(self, step: int, taken: int) -> int:
        return step + 1


@fault("is one step behind in the learning-rate schedule once it is resumed", resumes, schedules)
class ScheduleBehindOnceResumed(_Rescheduled):
    def resumed_place(self, step: int, taken: int) -> int:
        return step - 1


@fault("takes the first step after a resume at the learning rate that the schedule begins with", resumes, schedules)
class FirstRateWhenResumed(_Rescheduled):
    def resumed_place(self, step: int, taken: int) -> int:
        return 0 if step == taken else step


@fault("resumes with the weights alone, without the optimizer's state and the schedule", resumes, _keeps_state)
class WeightsAloneRestored(OptimizerStateNotRestored, ScheduleNotRestored):
    pass
