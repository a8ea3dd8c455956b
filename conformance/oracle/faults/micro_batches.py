"""Known bugs that do once per micro-batch what is due once per window."""

from __future__ import annotations

from fractions import Fraction
from functools import reduce
from itertools import zip_longest

from conformance.oracle.affine import Affine
from conformance.oracle.faults.averaging import only
from conformance.oracle.faults.catalogue import (
    accumulating,
    clips,
    computes_precisely,
    computes_roughly,
    decays,
    distributed,
    fault,
    has_momentum,
)
from conformance.oracle.recurrence import Recurrence, times
from conformance.workloads.layout import Window
from conformance.workloads.problem import Problem
from conformance.workloads.workload import AdamW


class _BetweenBackwards(Recurrence):
    """Does something between the backward passes of a window."""

    _moved: Affine | None = None

    def window_gradient(self, window: Window, weights: Affine) -> Affine:
        coefficients, vector = self.coefficients(window), self.symbols.exactly([Fraction(0)] * len(weights))
        parts = list(zip_longest(*window.shares, fillvalue=()))
        for number, part in enumerate(parts, start=1):
            vector = vector.plus(self.trained(window, weights, only(coefficients, part)))
            if number < len(parts):
                vector, weights = self.between(vector, weights)
        self._moved = weights
        return self.clip(vector)

    def update(self, weights: Affine, vector: Affine, step: int) -> Affine:
        return super().update(self._moved or weights, vector, step)

    def stepped_early(self, weights: Affine, vector: Affine) -> Affine:
        """The weights after a step inside the window."""
        return super().update(weights, self.clip(vector), self.taken)

    def between(self, vector: Affine, weights: Affine) -> tuple[Affine, Affine]:
        """The accumulated gradients and the weights after a backward pass that is not the last."""
        raise NotImplementedError


def _clips_early(problem: Problem) -> bool:
    """Whether a clip before the last backward pass changes a gradient, which depends on the data."""
    return _differs(problem, ClipBetweenBackwards)


def _differs(problem: Problem, textbook: type[Recurrence]) -> bool:
    steps = zip(Recurrence(problem).steps(), textbook(problem).steps(), strict=True)
    return any(right.gradient.gap(wrong.gradient) > 1 for right, wrong in steps)


@fault(
    "clips the accumulated gradients between the backward passes of a window",
    clips,
    accumulating,
    computes_precisely,
    _clips_early,
    at="clip",
    fix="clip once, after the window's last backward pass",
    why="Earlier micro-batches are cut once more with each later one, so they count less",
    edit="change between; clip above step",
)
class ClipBetweenBackwards(_BetweenBackwards):
    def between(self, vector: Affine, weights: Affine) -> tuple[Affine, Affine]:
        return self.clip(vector), weights


@fault(
    "clips each rank's accumulated gradients between the backward passes of a window, and averages them later",
    clips,
    accumulating,
    distributed,
    computes_precisely,
    lambda problem: _differs(problem, ClipOwnBetweenBackwards),
    at="clip",
    fix="clip once, after the window's last backward pass",
    why="Earlier micro-batches are cut once more with each later one, by each rank's own norm",
    edit="change between; clip above step",
)
class ClipOwnBetweenBackwards(Recurrence):
    def window_gradient(self, window: Window, weights: Affine) -> Affine:
        coefficients = times(self.coefficients(window), window.with_data)
        total = self.symbols.exactly([Fraction(0)] * len(weights))
        for share in filter(None, window.shares):
            *earlier, last = (self.trained(window, weights, only(coefficients, [part])) for part in share)
            own = reduce(lambda left, more: self.clip(left.plus(more)), earlier, total.scaled(Fraction(0)))
            total = total.plus(own.plus(last).scaled(Fraction(1, window.with_data)))
        return self.clip(total)


@fault(
    "takes a whole step for each micro-batch, with its own gradient",
    accumulating,
    is_fine=computes_roughly,
    fix="step once a window, after its last backward pass",
    why="Later micro-batches of a window get gradients at weights that have already moved",
    edit="change step",
)
class StepPerMicroBatch(_BetweenBackwards):
    def between(self, vector: Affine, weights: Affine) -> tuple[Affine, Affine]:
        return vector.scaled(Fraction(0)), self.stepped_early(weights, vector)


@fault(
    "takes a whole step for each micro-batch, with all gradients that its window has accumulated so far",
    accumulating,
    is_fine=computes_roughly,
    fix="step once a window, after its last backward pass",
    why="Earlier micro-batches are in `.grad` at each later step, so they are applied again",
    edit="change step",
)
class AccumulatesAndStepsPerMicroBatch(_BetweenBackwards):
    def between(self, vector: Affine, weights: Affine) -> tuple[Affine, Affine]:
        return vector, self.stepped_early(weights, vector)


@fault(
    "applies momentum and weight decay once per micro-batch, and the gradients once per window",
    accumulating,
    has_momentum,
    is_fine=computes_roughly,
    fix="call the optimizer once a window, after its last backward pass",
    why="The momentum shrinks and the weights decay once for each micro-batch",
    edit="change outside; change step",
)
class MomentumPerMicroBatch(_BetweenBackwards):
    def between(self, vector: Affine, weights: Affine) -> tuple[Affine, Affine]:
        return vector, self.stepped_early(weights, vector.scaled(Fraction(0)))


def _decays_apart(problem: Problem) -> bool:
    return isinstance(problem.workload.optimizer, AdamW)


@fault(
    "decays the weights once per micro-batch",
    decays,
    accumulating,
    _decays_apart,
    is_fine=computes_roughly,
    fix="decay once a window, in the optimizer's step",
    why="The weights shrink once for each micro-batch instead of once a window",
    edit="change outside; change step",
)
class DecayPerMicroBatch(_BetweenBackwards):
    def between(self, vector: Affine, weights: Affine) -> tuple[Affine, Affine]:
        parts = ((weights.scaled(1 - self._rate_of_decay(n)), [n]) for n in self.tensors)
        return vector, self.joined(parts)

    def _rate_of_decay(self, tensor: int) -> Fraction:
        decay = self.optimizer_of(tensor).weight_decay
        return decay * self.learning_rate_of(tensor, self.taken) if self.steps_on(tensor) else Fraction(0)


@fault(
    "adds the weight decay to the gradient of each micro-batch",
    decays,
    accumulating,
    lambda problem: not _decays_apart(problem),
    fix="decay once a window, in the optimizer's step",
    why="The decay is in the window's gradient once for each micro-batch",
    edit="change backward",
)
class DecayAddedPerMicroBatch(Recurrence):
    def update(self, weights: Affine, vector: Affine, step: int) -> Affine:
        further = self.window.length - 1
        added = ((weights.scaled(further * self.optimizer_of(n).weight_decay), [n]) for n in self.tensors)
        return super().update(weights, vector.plus(self.joined(added)), step)
