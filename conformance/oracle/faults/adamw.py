"""Known bugs in AdamW's formula: variants with one decision of the update rule changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cached_property
from itertools import count

from conformance.oracle.affine import Affine, Interval, square_root
from conformance.oracle.faults.catalogue import Fault, computes_roughly, decays, fault
from conformance.oracle.faults.formulas import EDIT, always, formula, settings, steps_with
from conformance.oracle.optimizers import ONE, AdamWRule, Rule, moved
from conformance.oracle.recurrence import Recurrence
from conformance.oracle.rounding import combined
from conformance.workloads.precision import FP64
from conformance.workloads.problem import Problem
from conformance.workloads.workload import AdamW


def _finer_than_eps(problem: Problem) -> bool:
    """Whether the place of eps shows: other formats round it off."""
    return problem.precision.master is FP64


@formula(
    "adds AdamW's eps to the second moment instead of to its root",
    _finer_than_eps,
    fix="add `eps` to the root of the second moment, as torch does",
    why="Under the root, eps counts as its root: steps of small gradients become shorter",
)
class EpsUnderRootOfMoment(AdamWRule):
    def roots(self, square: Interval, correction: Interval) -> Interval:
        low, high = square[0] / correction[1] ** 2, square[1] / correction[0] ** 2
        return square_root(low + self.spec.eps)[0], square_root(high + self.spec.eps)[1]


@formula(
    "adds AdamW's eps before it corrects the bias of the second moment",
    _finer_than_eps,
    fix="add `eps` to the corrected root, `sqrt(v) / sqrt(1 - beta2**step)`, as torch does",
    why="The correction scales eps too, so early steps become shorter",
)
class EpsScaled(AdamWRule):
    def roots(self, square: Interval, correction: Interval) -> Interval:
        low, high = square_root(square[0])[0] + self.spec.eps, square_root(square[1])[1] + self.spec.eps
        return low / correction[1], high / correction[0]


@formula(
    "counts each of AdamW's steps twice",
    fix="count steps in one place only, next to the moments",
    why="The bias correction of a later step is used, so early moments are scaled up too little",
    is_fine=Fault.is_fine,
)
class StepsCountedTwice(AdamWRule):
    def step(self, weights: Affine, gradient: Affine, lr: Fraction) -> Affine:
        self.steps += 1
        return super().step(weights, gradient, lr)


@formula(
    "is one ahead in its count of AdamW's steps",
    fix="correct the first step with a count of 1",
    why="The bias correction of the next step is used, so early moments are scaled up too little",
)
class StepsCountedAhead(AdamWRule):
    def forget(self) -> None:
        super().forget()
        self.steps = 1


@formula(
    "leaves out the bias corrections of AdamW",
    fix="divide the moments by `1 - beta1**step` and `1 - beta2**step`",
    why="Moments start at zero; without the corrections, early steps have another length",
)
class BiasNotCorrected(AdamWRule):
    def _bias_correction(self, beta: Fraction) -> Interval:
        return ONE, ONE


@formula(
    "leaves out the bias correction of AdamW's first moment",
    fix="divide the first moment by `1 - beta1**step`",
    why="The first moment starts at zero; without the correction, early steps are too short",
)
class FirstBiasNotCorrected(AdamWRule):
    def _bias_correction(self, beta: Fraction) -> Interval:
        return (ONE, ONE) if beta == self.spec.beta1 else super()._bias_correction(beta)


@formula(
    "leaves out the bias correction of AdamW's second moment",
    fix="divide the second moment by `1 - beta2**step`",
    why="The second moment starts at zero; without the correction, early steps are too long",
)
class SecondBiasNotCorrected(AdamWRule):
    def _bias_correction(self, beta: Fraction) -> Interval:
        return (ONE, ONE) if beta == self.spec.beta2 else super()._bias_correction(beta)


@formula(
    "sums AdamW's gradients and their squares instead of averaging them",
    fix="multiply the new gradient by `1 - beta1`, and its square by `1 - beta2`",
    why="Both moments are too large, by different factors",
)
class MomentsSummed(AdamWRule):
    def _fresh(self, beta: Fraction) -> Fraction:
        return ONE


@formula(
    "decays AdamW's weights without the learning rate",
    decays,
    fix="decay by `lr * weight_decay`",
    why="Each step decays the weights by all of `weight_decay`",
)
class DecayWithoutRate(AdamWRule):
    def kept(self, lr: Fraction) -> Fraction:
        return super().kept(ONE)


@formula(
    "decays AdamW's weights after the update instead of before it",
    decays,
    fix="decay the weights first, then subtract the update",
    why="The decay shrinks the update too",
)
class DecayAfterUpdate(AdamWRule):
    def updated(self, weights: Affine, steps: Sequence[Interval], lr: Fraction) -> Affine:
        kept = self.kept(lr)
        shorter = [(low * kept, high * kept) for low, high in steps]
        return moved(weights, shorter, self._roundings(6), self._fmt, kept=kept)


@formula(
    "adds AdamW's weight decay to the gradients, as Adam does",
    decays,
    fix="decay the weights themselves, by `lr * weight_decay`, apart from the moments",
    why="Decay in the gradient is divided by the root of the second moment, like the gradient",
    is_fine=computes_roughly,
)
class DecayThroughMoments(AdamWRule):
    def step(self, weights: Affine, gradient: Affine, lr: Fraction) -> Affine:
        parts = (ONE, gradient), (self.spec.weight_decay, weights)
        return super().step(weights, combined("weight decay", parts, self._fmt, self._ledger), lr)

    def kept(self, lr: Fraction) -> Fraction:
        return ONE


settings(
    "BetasSwapped",
    AdamW,
    "swaps AdamW's betas",
    change=lambda one: replace(one, beta1=one.beta2, beta2=one.beta1),
    fix="use the first beta for the gradients, and the second for their squares",
    why="The first moment forgets as slowly as the second should, and the second as fast as the first",
)
settings(
    "FirstMomentLost",
    AdamW,
    "steps by the gradient instead of AdamW's first moment",
    change=lambda one: replace(one, beta1=Fraction(0)),
    fix="step by the corrected average of the gradients",
    why="Without the first moment, earlier gradients do not count",
)


@fault(
    "counts a step of AdamW for each parameter instead of one for all",
    steps_with(AdamW),
    lambda problem: len(problem.workload.model.tensors) > 1,
    fix="count once in each call of `step()`, before all its loops, or for each parameter in its state",
    why="The bias correction of all parameters but the first is that of a later step",
    edit=f"change count; {EDIT}",
    is_fine=always,
)
class StepsCountedByParameter(Recurrence):
    @cached_property
    def rules(self) -> list[tuple[Rule, list[int]]]:
        steps = count()

        class Counting(AdamWRule):
            def step(self, weights: Affine, gradient: Affine, lr: Fraction) -> Affine:
                self.steps = next(steps)
                return super().step(weights, gradient, lr)

        in_turn = sorted(self.tensors, key=self.group_of)
        fmt, ledger = self.problem.precision.master, self.ledger
        return [(Counting(self.optimizer_of(tensor), fmt, ledger), [tensor]) for tensor in in_turn]
