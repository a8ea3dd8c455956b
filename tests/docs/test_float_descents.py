"""The notebook's descents end at 5 3 2 1; accumulation is ordinary descent, mini-batch descent is not."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from conformance.oracle.recurrence import Recurrence
from conformance.workloads.data_sets import COEFFICIENTS, EPOCHS, LEARNING_RATE, SHARD, multivariate
from conformance.workloads.layout import Layout
from conformance.workloads.precision import PRECISIONS
from conformance.workloads.problem import Problem
from tools.float_descents import NODES, descents, distance


@pytest.fixture(scope="module")
def right():
    """The oracle's enclosures after each epoch."""
    workload = multivariate()
    return [step.weights for step in Recurrence(Problem(workload, Layout.of(workload), PRECISIONS["fp64"])).run().steps]


@pytest.mark.parametrize("track", ["ordinary", "accumulated"])
def test_ordinary_and_accumulated_descent_are_the_oracle_trajectory(right, track):
    visited = getattr(descents(), track)
    assert len(visited) == EPOCHS + 1
    assert visited[0] == tuple(map(float, multivariate().start))
    for weights, enclosure in zip(visited[1:], right, strict=True):
        assert enclosure.holds([*map(Fraction, weights)])


def test_all_nodes_of_the_ring_hold_the_same_weights_the_right_ones(right):
    nodes = descents().nodes
    assert len(nodes) == NODES == 4
    assert len(set(nodes)) == 1
    assert right[-1].holds([*map(Fraction, nodes[0])])
    assert tuple(map(round, nodes[0])) == COEFFICIENTS


def test_mini_batch_descent_steps_after_every_shard_and_comes_nearer():
    rows = np.array([[float(value) for value in sample.x] for sample in multivariate().batches[0]])
    targets = np.array([float(sample.y) for sample in multivariate().batches[0]])
    weights, epochs = np.array([float(value) for value in multivariate().start]), 10
    for _ in range(epochs):
        for first in range(0, len(rows), SHARD):
            x, y = rows[first : first + SHARD], targets[first : first + SHARD]
            weights = weights - LEARNING_RATE * 2 * x.T @ (x @ weights - y) / SHARD
    mini, ordinary = descents().mini_batch, descents().ordinary
    # The error of either is at most that of a shard's sum, n u |x|^2 |w|, in each contracting step.
    largest = float(np.abs(rows).sum(axis=1).max() ** 2 * max(COEFFICIENTS))
    error = np.abs(weights - np.array(mini[epochs])).max()
    assert error < 2 * epochs * NODES * SHARD * 2.0**-53 * largest
    assert distance(mini[-1]) < distance(ordinary[-1]) / 2
    assert distance(ordinary[-1]) < 1 / 2
