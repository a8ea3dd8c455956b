"""Known bugs in the formulas of optimizers: a table of variants, each with one decision of the update rule changed.

Bounds need not exclude most of them: few trainers have their own formula, and some differences are within rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any, TypeVar

from conformance.oracle.affine import Affine, Interval, square_root
from conformance.oracle.faults.catalogue import Condition, Fault, decays, fault, has_momentum
from conformance.oracle.optimizers import ONE, AdagradRule, AdamWRule, Rule, SGDRule
from conformance.oracle.recurrence import Recurrence
from conformance.oracle.rounding import combined
from conformance.workloads.problem import Problem
from conformance.workloads.workload import SGD, Adagrad, AdamW, Optimizer

R = TypeVar("R", bound=type[Rule])
_KINDS: dict[type[Rule], type[Optimizer]] = {SGDRule: SGD, AdamWRule: AdamW, AdagradRule: Adagrad}
EDIT = "find the formula at or above weights; find the formula in step"


def always(problem: Problem) -> bool:
    return True


def formula(
    text: str, *conditions: Condition, fix: str, why: str, is_fine: Condition = always, edit: str = ""
) -> Callable[[R], R]:
    """Decorator: adds a rule with another formula to the catalogue of faults; the rest is as in `fault`."""

    def add(rule: R) -> R:
        kind = next(_KINDS[one] for one in rule.__mro__ if one in _KINDS)

        def own(recurrence: Recurrence, spec: Optimizer) -> Rule:
            return rule(spec, recurrence.problem.precision.master, recurrence.ledger)

        textbook = type(rule.__name__, (Recurrence,), {"rule": own})
        fault(text, steps_with(kind), *conditions, fix=fix, why=why, edit=edit + EDIT, is_fine=is_fine)(textbook)
        return rule

    return add


def settings(
    name: str,
    kind: type[Optimizer],
    text: str,
    *conditions: Condition,
    change: Callable[[Any], Any],
    fix: str,
    why: str,
    is_fine: Condition = always,
) -> None:
    """Adds a row: the correct formula, with other settings."""

    def optimizer(recurrence: Recurrence, group: int = 0) -> Optimizer:
        right = Recurrence.optimizer(recurrence, group)
        changed: Optimizer = change(right) if isinstance(right, kind) else right
        return changed

    textbook = type(name, (Recurrence,), {"optimizer": optimizer})
    fault(text, steps_with(kind), *conditions, fix=fix, why=why, edit=EDIT, is_fine=is_fine)(textbook)


def steps_with(kind: type[Optimizer]) -> Condition:
    return lambda problem: isinstance(problem.workload.optimizer, kind)


def _dampens(problem: Problem) -> bool:
    optimizer = problem.workload.optimizer
    return isinstance(optimizer, SGD) and has_momentum(problem) and bool(optimizer.dampening)


def _is_nesterov(problem: Problem) -> bool:
    return isinstance(problem.workload.optimizer, SGD) and problem.workload.optimizer.nesterov


def _averages_otherwise(problem: Problem) -> bool:
    """Whether momentum is not the average of gradients, in which each new one counts 1 - momentum."""
    optimizer = problem.workload.optimizer
    return isinstance(optimizer, SGD) and has_momentum(problem) and optimizer.dampening != optimizer.momentum


@formula(
    "decays the weights apart from SGD's momentum, as AdamW does",
    decays,
    has_momentum,
    fix="add `weight_decay * weight` to the gradient before the momentum, as torch's SGD does",
    why="The momentum lacks the decay of earlier steps",
)
class DecayPastMomentum(SGDRule):
    def decayed(self, gradient: Affine, weights: Affine) -> Affine:
        return gradient

    def updated(self, weights: Affine, direction: Affine, lr: Fraction) -> Affine:
        return super().updated(weights, super().decayed(direction, weights), lr)


@formula(
    "decays the weights apart from SGD's step, without the learning rate",
    decays,
    has_momentum,
    fix="add `weight_decay * weight` to the gradient before the momentum, as torch's SGD does",
    why="The decay misses the learning rate, and the momentum lacks the decay of earlier steps",
)
class DecayPastStep(DecayPastMomentum):
    def updated(self, weights: Affine, direction: Affine, lr: Fraction) -> Affine:
        parts = (ONE - self.spec.weight_decay, weights), (-lr, direction)
        return combined("update", parts, self._fmt, self._ledger)


@formula(
    "applies dampening to the first gradient too",
    _dampens,
    fix="set the momentum to the first gradient as it is; dampening begins with the second",
    why="The first update is smaller by the dampening",
    edit="change `dampening` near weights|state; ",
    is_fine=Fault.is_fine,
)
class DampensFirstGradient(SGDRule):
    def step(self, weights: Affine, gradient: Affine, lr: Fraction) -> Affine:
        self.buffer = gradient.scaled(Fraction(0)) if self.buffer is None else self.buffer
        return super().step(weights, gradient, lr)


settings(
    "DampeningLost",
    SGD,
    "ignores SGD's dampening",
    _dampens,
    change=lambda one: replace(one, dampening=Fraction(0)),
    fix="multiply each gradient after the first by `1 - dampening` before it joins the momentum",
    why="Each gradient after the first counts fully",
)
settings(
    "MomentumAveraged",
    SGD,
    "averages gradients in its momentum instead of summing them",
    _averages_otherwise,
    change=lambda one: replace(one, dampening=one.momentum),
    fix="compute `buffer = momentum * buffer + (1 - dampening) * gradient`, as torch does",
    why="Each new gradient counts `1 - momentum` instead of `1 - dampening`",
)


@formula(
    "averages gradients in its momentum from zero instead of summing them",
    _averages_otherwise,
    fix="compute `buffer = momentum * buffer + (1 - dampening) * gradient`, from the first gradient, as torch does",
    why="Each gradient counts `1 - momentum`, the first one too",
)
class MomentumAveragedFromZero(DampensFirstGradient):
    def step(self, weights: Affine, gradient: Affine, lr: Fraction) -> Affine:
        self.spec = replace(self.spec, dampening=self.spec.momentum)
        return super().step(weights, gradient, lr)


@formula(
    "steps by the momentum before it adds the new gradient",
    has_momentum,
    fix="add the gradient to the momentum, then step by it",
    why="Each step uses the momentum of the step before",
)
class OldMomentum(SGDRule):
    def direction(self, gradient: Affine, before: Affine | None, after: Affine) -> Affine:
        return gradient.scaled(Fraction(0)) if before is None else super().direction(gradient, before, before)


@formula(
    "leaves the gradient itself out of Nesterov's step",
    _is_nesterov,
    fix="step by `gradient + momentum * buffer`",
    why="Nesterov's step is the gradient plus `momentum` times the buffer; here it is only the latter",
)
class NesterovWithoutGradient(SGDRule):
    def direction(self, gradient: Affine, before: Affine | None, after: Affine) -> Affine:
        return after.scaled(self.spec.momentum)


@formula(
    "looks ahead with the momentum of before the gradient in Nesterov's step",
    _is_nesterov,
    fix="add the gradient to the buffer first, then step by `gradient + momentum * buffer`",
    why="The buffer in Nesterov's step lacks the newest gradient",
)
class NesterovOfOldMomentum(SGDRule):
    def direction(self, gradient: Affine, before: Affine | None, after: Affine) -> Affine:
        return gradient if before is None else super().direction(gradient, before, before)


settings(
    "NesterovLost",
    SGD,
    "uses plain momentum instead of Nesterov's",
    _is_nesterov,
    change=lambda one: replace(one, nesterov=False),
    fix="pass `nesterov=True` to the optimizer",
    why="Nesterov's step looks one momentum step ahead; the plain one does not",
    is_fine=Fault.is_fine,
)
settings(
    "NesterovUnasked",
    SGD,
    "uses Nesterov's momentum instead of plain momentum",
    has_momentum,
    lambda problem: not _is_nesterov(problem),
    change=lambda one: replace(one, nesterov=bool(one.momentum)),
    fix="pass `nesterov=False` to the optimizer",
    why="Nesterov's step looks one momentum step ahead; the plain one does not",
)


@formula(
    "resets Adagrad's sums of squares after each step",
    lambda problem: problem.workload.steps > 1,
    fix="keep one optimizer for all steps; never clear its state",
    why="With new sums, each step divides by its own gradient alone and is as long as the first",
    is_fine=Fault.is_fine,
)
class SumsOfSquaresLost(AdagradRule):
    def step(self, weights: Affine, gradient: Affine, lr: Fraction) -> Affine:
        self.sums.clear()
        return super().step(weights, gradient, lr)


@formula(
    "adds Adagrad's eps to the sum of squares instead of to its root",
    fix="add `eps` to the root of the sum of squares, as torch does",
    why="Under the root, eps counts as its root: steps of small gradients become shorter",
    is_fine=Fault.is_fine,
)
class EpsUnderRoot(AdagradRule):
    def roots(self, total: Interval) -> Interval:
        return square_root(total[0] + self.spec.eps)[0], square_root(total[1] + self.spec.eps)[1]


settings(
    "RateDecayForgotten",
    Adagrad,
    "ignores the decay of Adagrad's learning rate",
    lambda problem: problem.workload.steps > 1,
    change=lambda one: replace(one, lr_decay=Fraction(0)),
    fix="pass `lr_decay` to Adagrad",
    why="Without `lr_decay`, later steps keep the first step's learning rate",
    is_fine=Fault.is_fine,
)
