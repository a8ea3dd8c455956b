"""Parameters that are frozen."""

from __future__ import annotations

from fractions import Fraction

from conformance.oracle.affine import Affine
from conformance.oracle.faults.catalogue import fault
from conformance.oracle.faults.conditions import clips, decays, has_momentum, schedules
from conformance.oracle.recurrence import Recurrence
from conformance.workloads.problem import Problem


def _freezes(problem: Problem) -> bool:
    return any(tensor.frozen for tensor in problem.workload.model.tensors)


def _unfreezes(problem: Problem) -> bool:
    return problem.workload.unfreeze_at is not None


@fault("trains parameters that are frozen", _freezes)
class FrozenTrained(Recurrence):
    def trains(self, tensor: int, window: int) -> bool:
        return True


@fault("steps frozen parameters as if they had gradients of zero, so that they decay", _freezes, decays)
class FrozenDecay(Recurrence):
    def steps_on(self, tensor: int) -> bool:
        return True


@fault("never trains the parameters that are unfrozen", _unfreezes)
class NeverUnfreezes(Recurrence):
    def trains(self, tensor: int, window: int) -> bool:
        return super().trains(tensor, 0)


@fault("trains the parameters that are unfrozen one window late", _unfreezes)
class UnfreezesLate(Recurrence):
    def trains(self, tensor: int, window: int) -> bool:
        return super().trains(tensor, window - 1)


@fault("makes the optimizer anew when it unfreezes parameters, and so forgets its momentum", _unfreezes, has_momentum)
class StateLostWhenUnfreezing(Recurrence):
    def update(self, weights: Affine, vector: Affine, step: int) -> Affine:
        if self.window.index == self.problem.workload.unfreeze_at:
            for rule, _ in self.rules:
                rule.forget()
        return super().update(weights, vector, step)


@fault("begins the learning-rate schedule again when it unfreezes parameters", _unfreezes, schedules)
class ScheduleBegunAgainWhenUnfreezing(Recurrence):
    def place(self, step: int) -> int:
        first = self.problem.workload.unfreeze_at or 0
        return super().place(step - first if step >= first else step)


@fault("steps the parameters that are unfrozen by a learning rate that no schedule changes", _unfreezes, schedules)
class ScheduleWithoutUnfrozen(Recurrence):
    def learning_rate_of(self, tensor: int, step: int) -> Fraction:
        return super().learning_rate_of(tensor, step if self.trains(tensor, 0) else 0)


@fault("clips only the parameters that are trained from the start", _unfreezes, clips)
class ClipsWhatWasTrainedAtFirst(Recurrence):
    def clip(self, vector: Affine) -> Affine:
        first = [n for n in self.tensors if self.trains(n, 0)]
        late = [n for n in self.tensors if n not in first]
        return self.joined([(super().clip(self.only(vector, first)), first), (vector, late)])
