"""Ranks that step along gradients of their own and average the weights after each step, as local SGD does.

With SGD that is the textbook's step, but for what is rounded: an odd number of ranks may round the average.
"""

from __future__ import annotations

from fractions import Fraction

from conformance.oracle.accepted_readings import AveragedInEveryMicroBatch
from conformance.oracle.affine import Affine
from conformance.oracle.deviation import Deviation
from conformance.oracle.rounding import gamma
from conformance.workloads.layout import Window
from conformance.workloads.workload import SGD, Vector

#: More than an SGD's step rounds: decay, momentum and Nesterov's sum have three operations each, the update has two.
_OF_A_STEP = 12


class AveragesWeights(AveragedInEveryMicroBatch):
    """Of each rank's own gradient, buffer and step, the means of the magnitudes over the ranks are bounded: what a rank
    rounds is relative to these, and not to those of the average."""

    _terms: Vector = ()
    _buffer: Vector = ()
    _lost: Vector = ()

    def averaged(self, window: Window, weights: Affine, coefficients: Vector) -> Affine:
        self._terms = self.form(window, coefficients).magnitude(weights.magnitude)
        return super().averaged(window, weights, coefficients)

    def update(self, weights: Affine, vector: Affine, step: int) -> Affine:
        before, moved = weights.magnitude, super().update(weights, vector, step)
        fmt, tensors = self.problem.precision.master, self.problem.workload.model.tensor_of
        buffers, lost, radii = [], [], []
        for index, tensor in enumerate(tensors):
            spec, length, error = self.optimizer_of(tensor), Fraction(0), Fraction(0)
            if isinstance(spec, SGD):
                length = self._terms[index] + spec.weight_decay * before[index]
                if self._buffer:
                    length += spec.momentum * self._buffer[index]
                    error = spec.momentum * self._lost[index]
                error += gamma(_OF_A_STEP, fmt) * length + _OF_A_STEP * fmt.quantum
            buffers.append(length)
            lost.append(error)
            # With Nesterov's momentum, a step has the gradient and the buffer in it.
            rate = 2 * self.learning_rate_of(tensor, step)
            size = max(before[index], moved.magnitude[index]) + rate * length
            roundings = _OF_A_STEP + self.window.world_size + 2
            radii.append(rate * error + gamma(roundings, fmt) * size + roundings * fmt.quantum)
        self._buffer, self._lost = tuple(buffers), tuple(lost)
        return moved.widen(radii)


AVERAGES_WEIGHTS = Deviation("averages the weights after each step", AveragesWeights)
