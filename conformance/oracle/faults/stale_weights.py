"""The weights that a gradient is taken at."""

from __future__ import annotations

from copy import copy

from conformance.oracle.affine import Affine
from conformance.oracle.faults.catalogue import fault
from conformance.oracle.gradient import gradient
from conformance.oracle.recurrence import Recurrence
from conformance.workloads.layout import Window
from conformance.workloads.precision import BF16
from conformance.workloads.problem import Problem
from conformance.workloads.workload import SGD


def _steps_again(problem: Problem) -> bool:
    return problem.workload.steps > 1


def has_room_for_other_weights(problem: Problem) -> bool:
    """Not where bfloat16's bound is too wide for batches at weights that they are not designed for."""
    return not (problem.workload.shuffle and problem.precision.compute is BF16)


def _has_layers(problem: Problem) -> bool:
    return len(problem.workload.model.layers) > 1


@fault(
    "takes each gradient at the weights before the last step",
    _steps_again,
    has_room_for_other_weights,
    # In 16 bits the bound of AdamW is too wide to tell.
    lambda problem: isinstance(problem.workload.optimizer, SGD),
)
class StaleWeights(Recurrence):
    _before: Affine | None = None

    def window_gradient(self, window: Window, weights: Affine) -> Affine:
        before, self._before = self._before or weights, weights
        return super().window_gradient(window, before)


@fault("steps between a forward and its backward, which finds other weights", _has_layers, _steps_again)
class StaleForward(Recurrence):
    _before: Affine | None = None

    def window_gradient(self, window: Window, weights: Affine) -> Affine:
        before, self._before = self._before or weights, weights
        return self.clip(_backward_at(self, window, before, weights))


def _backward_at(rule: Recurrence, window: Window, weights: Affine, backward: Affine) -> Affine:
    """The gradient of a forward at ``weights`` whose backward finds other ones."""
    form, finite = rule.form(window, rule.coefficients(window)), rule.history is not None
    return gradient(rule.problem, window, form, weights, rule.loss_scale, rule.ledger, finite, backward)


@fault("steps the last layer before the gradients of those below are computed from it", _has_layers)
class LastLayerSteppedFirst(Recurrence):
    _taken = 0

    def window_gradient(self, window: Window, weights: Affine) -> Affine:
        right, others, last = super().window_gradient(window, weights), self.tensors[:-1], self.tensors[-1:]
        # A step changes the optimizer's state, and this one is taken again with all parameters.
        tried = self.joined(
            (copy(rule).step(weights, right, self.learning_rate_of(own[0], self._taken)), own)
            for rule, own in self.rules
        )
        stepped = self.joined([(weights, others), (tried, last)])
        return self.joined([(self.clip(_backward_at(self, window, weights, stepped)), others), (right, last)])

    def update(self, weights: Affine, vector: Affine, step: int) -> Affine:
        self._taken = step + 1
        return super().update(weights, vector, step)
