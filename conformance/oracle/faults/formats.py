"""The formats that values are rounded to."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

from conformance.oracle.affine import Affine
from conformance.oracle.faults.catalogue import fault
from conformance.oracle.gradient import gradient
from conformance.oracle.recurrence import Recurrence
from conformance.oracle.rounding import nearest
from conformance.workloads.layout import Window
from conformance.workloads.precision import BF16
from conformance.workloads.problem import Problem
from conformance.workloads.workload import Vector


def _fine(problem: Problem) -> bool:
    """Whether the weights need more bits than 16-bit formats have. Rounding in the master format may hide it."""
    workload = problem.workload
    return workload.epochs == 1 and not all(map(BF16.holds, workload.start))


def _data_fit(problem: Problem) -> bool:
    """Whether bfloat16 has all features and targets."""
    samples = chain.from_iterable(problem.workload.batches)
    return all(BF16.holds(value) for sample in samples for value in (*sample.x, sample.y))


@fault("rounds the data to bfloat16", _fine, lambda problem: not (problem.precision.mixed or _data_fit(problem)))
class DataRounded(Recurrence):
    def averaged(self, window: Window, weights: Affine, coefficients: Vector) -> Affine:
        batch = tuple(
            replace(sample, x=tuple(nearest(value, BF16) for value in sample.x), y=nearest(sample.y, BF16))
            for sample in window.batch
        )
        return super().averaged(replace(window, batch=batch), weights, coefficients)


@fault("rounds the weights to 16 bits, in each step or before the first", _fine)
class WeightsRounded(Recurrence):
    def update(self, weights: Affine, vector: Affine, step: int) -> Affine:
        moved = super().update(weights, vector, step)
        fmt = self.problem.precision.compute if self.problem.precision.mixed else BF16
        return self.symbols.exactly([nearest(value, fmt) for value in moved.center])


@fault("computes without autocast", _fine, _data_fit, lambda problem: problem.precision.mixed)
class NotCast(Recurrence):
    def averaged(self, window: Window, weights: Affine, coefficients: Vector) -> Affine:
        precision = self.problem.precision
        form = self.form(window, coefficients)
        uncast = replace(self.problem, precision=replace(precision, compute=precision.master))
        return gradient(uncast, window, form, weights, self.loss_scale, self.ledger, self.history is not None)
