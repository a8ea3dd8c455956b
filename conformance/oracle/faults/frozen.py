"""Parameters that are frozen."""

from __future__ import annotations

from conformance.oracle.faults.catalogue import fault
from conformance.oracle.faults.conditions import decays
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
