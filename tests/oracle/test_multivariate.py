"""Gradient descent on the multivariate regression recovers 5 3 2 1, in every layout by the same way."""

from __future__ import annotations

from math import sqrt

import numpy as np
import pytest

from conformance.oracle.recurrence import Recurrence
from conformance.workloads.data_sets import COEFFICIENTS, SHARD, multivariate
from conformance.workloads.layout import Layout
from conformance.workloads.precision import PRECISIONS
from conformance.workloads.problem import Problem


def run(layout, precision="fp64", limit=None):
    return Recurrence(Problem(multivariate(), layout, PRECISIONS[precision])).run(limit)


@pytest.fixture(scope="module")
def whole():
    return run(Layout.of(multivariate()))


def distance(weights):
    return sqrt(sum((float(weight) - right) ** 2 for weight, right in zip(weights, COEFFICIENTS, strict=True)))


def test_400_epochs_recover_5_3_2_1(whole):
    """As near as the slowest mode lets them come: the error shrinks at least by the largest eigenvalue of I - lr A."""
    workload = multivariate()
    assert len(whole.steps) == 400
    rows = np.array([[float(value) for value in sample.x] for sample in workload.batches[0]])
    matrix = 2 * rows.T @ rows / len(rows)
    slowest = np.abs(1 - float(workload.optimizer.lr) * np.linalg.eigvalsh(matrix)).max()
    # What eigvalsh and the product before it may be off: a multiple of the double's roundoff of the norm.
    slowest += len(rows) * np.finfo(float).eps * np.linalg.norm(matrix)
    limit = slowest**400 * distance(workload.start)
    final = whole.steps[-1].weights
    assert limit < 1 / 2
    assert distance(final.center) <= limit
    assert tuple(map(round, final.center)) == COEFFICIENTS
    assert distance(final.center) + 2 * max(final.radius) < 1 / 2


def form(layout):
    rule, window = Recurrence(Problem(multivariate(), layout, PRECISIONS["fp64"])), layout.window(multivariate(), 0)
    return rule.form(window, rule.coefficients(window))


@pytest.mark.parametrize(("world_size", "accumulation"), [(1, 4), (4, 1), (2, 2), (4, 2), (1, 5)])
def test_shards_give_the_trajectory_of_the_whole(whole, world_size, accumulation):
    layout = Layout.of(multivariate(), world_size, accumulation)
    assert form(layout) == form(Layout.of(multivariate()))
    if world_size * accumulation == 4:
        assert layout.micro_batch_size == SHARD
    for expected, step in zip(whole.steps, run(layout, limit=24).steps, strict=False):
        assert (step.weights.center, step.gradient.center) == (expected.weights.center, expected.gradient.center)


def test_the_bound_settles_because_gradient_descent_forgets_its_errors(whole):
    steps = run(Layout.of(multivariate()), "fp32").steps
    for one, other in zip(whole.steps, steps, strict=True):
        assert other.weights.gap(one.weights) <= 1
    early, later, final = (max(steps[epoch].weights.radius) for epoch in (199, 299, 399))
    assert final - later < later - early
    assert distance(steps[-1].weights.center) + 2 * float(final) < 1 / 2
