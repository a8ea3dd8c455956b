"""Known bugs of Adagrad."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from conformance.oracle.affine import Affine, Interval, square_root
from conformance.oracle.faults.catalogue import fault
from conformance.oracle.optimizers import AdagradRule, Rule
from conformance.oracle.recurrence import Recurrence
from conformance.workloads.problem import Problem
from conformance.workloads.workload import Adagrad, Optimizer


def _is_adagrad(problem: Problem) -> bool:
    return isinstance(problem.workload.optimizer, Adagrad) and problem.workload.steps > 1


@fault(
    "ignores the decay of Adagrad's learning rate",
    _is_adagrad,
    fix="pass `lr_decay` to Adagrad",
    why="Without `lr_decay`, later steps keep the first step's learning rate",
)
class RateDecayForgotten(Recurrence):
    def optimizer(self, group: int = 0) -> Optimizer:
        right = super().optimizer(group)
        return replace(right, lr_decay=Fraction(0)) if isinstance(right, Adagrad) else right


@fault(
    "resets Adagrad's sums of squares after each step",
    _is_adagrad,
    fix="keep one optimizer for all steps; never clear its state",
    why="With new sums, each step divides by its own gradient alone and is as long as the first",
)
class SumsOfSquaresLost(Recurrence):
    def rule(self, spec: Optimizer) -> Rule:
        class Forgetting(AdagradRule):
            def step(self, weights: Affine, gradient: Affine, lr: Fraction) -> Affine:
                self.sums.clear()
                return super().step(weights, gradient, lr)

        return Forgetting(spec, self.problem.precision.master, self.ledger)


@fault(
    "adds Adagrad's eps to the sum of squares instead of to its root",
    _is_adagrad,
    fix="add `eps` to the root of the sum of squares, as torch does",
    why="Under the root, eps counts as its root: steps of small gradients become shorter",
)
class EpsUnderRoot(Recurrence):
    def rule(self, spec: Optimizer) -> Rule:
        class UnderRoot(AdagradRule):
            def roots(self, total: Interval) -> Interval:
                return square_root(total[0] + self.spec.eps)[0], square_root(total[1] + self.spec.eps)[1]

        return UnderRoot(spec, self.problem.precision.master, self.ledger)
