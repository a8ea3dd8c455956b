"""Known bugs of AdamW."""

from __future__ import annotations

from fractions import Fraction

from conformance.oracle.affine import Affine, Interval, square_root
from conformance.oracle.faults.catalogue import computes_roughly, decays, fault
from conformance.oracle.optimizers import ONE, AdamWRule, Rule
from conformance.oracle.recurrence import Recurrence
from conformance.oracle.rounding import combined
from conformance.workloads.precision import FP64
from conformance.workloads.problem import Problem
from conformance.workloads.workload import AdamW, Optimizer


def _is_adamw(problem: Problem) -> bool:
    return isinstance(problem.workload.optimizer, AdamW)


@fault(
    "adds AdamW's eps to the second moment instead of to its root",
    _is_adamw,
    # Other formats round it off.
    lambda problem: problem.precision.master is FP64,
    fix="add `eps` to the root of the second moment, as torch does",
    why="Under the root, eps counts as its root: steps of small gradients become shorter",
    # A compiled optimizer corrects biases in single precision.
    is_fine=lambda problem: True,
)
class EpsUnderRootOfMoment(Recurrence):
    def rule(self, spec: Optimizer) -> Rule:
        class UnderRoot(AdamWRule):
            def roots(self, square: Interval, correction: Interval) -> Interval:
                low, high = square[0] / correction[1] ** 2, square[1] / correction[0] ** 2
                return square_root(low + self.spec.eps)[0], square_root(high + self.spec.eps)[1]

        return UnderRoot(spec, self.problem.precision.master, self.ledger)


@fault(
    "counts each of AdamW's steps twice",
    _is_adamw,
    fix="count steps in one place only, next to the moments",
    why="The bias correction of a later step is used, so early moments are scaled up too little",
)
class StepsCountedTwice(Recurrence):
    def rule(self, spec: Optimizer) -> Rule:
        class Counting(AdamWRule):
            def step(self, weights: Affine, gradient: Affine, lr: Fraction) -> Affine:
                self.steps += 1
                return super().step(weights, gradient, lr)

        return Counting(spec, self.problem.precision.master, self.ledger)


@fault(
    "adds AdamW's weight decay to the gradients, as Adam does",
    _is_adamw,
    decays,
    fix="decay the weights themselves, by `lr * weight_decay`, apart from the moments",
    why="Decay in the gradient is divided by the root of the second moment, like the gradient",
    is_fine=computes_roughly,
)
class DecayThroughMoments(Recurrence):
    def rule(self, spec: Optimizer) -> Rule:
        class Coupled(AdamWRule):
            def step(self, weights: Affine, gradient: Affine, lr: Fraction) -> Affine:
                parts = (ONE, gradient), (self.spec.weight_decay, weights)
                return super().step(weights, combined("weight decay", parts, self._fmt, self._ledger), lr)

            def kept(self, lr: Fraction) -> Fraction:
                return ONE

        return Coupled(spec, self.problem.precision.master, self.ledger)
