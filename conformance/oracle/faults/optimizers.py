"""What the optimizer does, and what it keeps."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from conformance.oracle.affine import Affine
from conformance.oracle.faults.catalogue import fault
from conformance.oracle.faults.conditions import decays, has_momentum, runs_out
from conformance.oracle.recurrence import Recurrence
from conformance.workloads.problem import Problem
from conformance.workloads.workload import SGD, Optimizer


def _passes_again(problem: Problem) -> bool:
    return problem.workload.epochs > 1


def _has_state(problem: Problem) -> bool:
    return has_momentum(problem) or not isinstance(problem.workload.optimizer, SGD)


@fault("adds the gradient instead of subtracting it")
class Ascends(Recurrence):
    def update(self, weights: Affine, vector: Affine, step: int) -> Affine:
        return super().update(weights, vector.scaled(Fraction(-1)), step)


@fault("leaves ranks that have run out of data with the weights that they had then", runs_out)
class LeftBehind(Recurrence):
    def update(self, weights: Affine, vector: Affine, step: int) -> Affine:
        has_all = self.window.with_data == self.window.world_size
        return super().update(weights, vector, step) if has_all else weights


@fault("applies every gradient twice")
class StepsTwice(Recurrence):
    def update(self, weights: Affine, vector: Affine, step: int) -> Affine:
        return super().update(super().update(weights, vector, step), vector, step)


@fault("forgets the weight decay", decays)
class NoWeightDecay(Recurrence):
    def optimizer(self, group: int = 0) -> Optimizer:
        return replace(super().optimizer(group), weight_decay=Fraction(0))


@fault("applies the weight decay twice", decays)
class WeightDecayTwice(Recurrence):
    def optimizer(self, group: int = 0) -> Optimizer:
        right = super().optimizer(group)
        return replace(right, weight_decay=2 * right.weight_decay)


@fault("forgets the momentum", has_momentum)
class MomentumLost(Recurrence):
    def optimizer(self, group: int = 0) -> Optimizer:
        right = super().optimizer(group)
        return replace(right, momentum=Fraction(0), nesterov=False) if isinstance(right, SGD) else right


@fault("makes the optimizer anew in each epoch, and so forgets its state", _has_state, _passes_again)
class StateLostInEpochs(Recurrence):
    _epoch = 0

    def update(self, weights: Affine, vector: Affine, step: int) -> Affine:
        epoch = self.window.epoch
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
    def optimizer(self, group: int = 0) -> Optimizer:
        right = super().optimizer(group)
        return replace(right, nesterov=False) if isinstance(right, SGD) else right
