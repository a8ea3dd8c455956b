"""Golden numbers: the tables of the gradient-averaging exercise, by the oracle.

The correct answers are rationals, so they are compared exactly where the exercise gives exact numbers, and rounded to
five digits where the exercise does so. `tests/exercise` has the cases of each question.
"""

from __future__ import annotations

from fractions import Fraction
from math import prod

import pytest

from conformance.oracle.normal_form import NormalForm
from conformance.oracle.recurrence import Recurrence
from conformance.workloads.data_sets import LINE, NOISY_LINE, TWO_WORKERS, exercise, points
from conformance.workloads.layout import Layout, Window
from conformance.workloads.model import Linear
from conformance.workloads.precision import PRECISIONS
from conformance.workloads.problem import Problem

#: The shards of both workers, in the order in which two ranks read them.
TOGETHER = [(*first, *second) for first, second in zip(*TWO_WORKERS, strict=True)]


def slope(m, data, n=None):
    """The gradient of the loss of ``data`` where each squared error is divided by ``n``."""
    window = Window(0, 0, tuple(range(len(data))), points(data), ((tuple(range(len(data))),),), 1)
    quadratic = NormalForm.of(window, (Fraction(1, n or len(data)),) * len(data), Linear(1))
    return quadratic.matrix[0][0] * m - quadratic.offset[0]


def train(batches, lr, iterations, world_size=1, precision="fp64"):
    """The steps of ``iterations`` over ``batches``, which are repeated as often as needed."""
    workload = exercise("exercise", batches, lr, -(-iterations // len(batches)))
    problem = Problem(workload, Layout.of(workload, world_size), PRECISIONS[precision])
    return Recurrence(problem).run(iterations).steps


def one_by_one(data):
    return [[point] for point in data]


def by_hand(batches, lr, iterations, workers=1):
    """Gradient descent in rationals, straight from the definition: the mean of the workers' mean gradients."""
    m, visited = Fraction(0), []
    for iteration in range(iterations):
        batch = [(Fraction(x), Fraction(y)) for x, y in batches[iteration % len(batches)]]
        size = len(batch) // workers
        shards = [batch[start : start + size] for start in range(0, len(batch), size)]
        m -= Fraction(lr) * sum(sum(-2 * x * (y - m * x) for x, y in own) / len(own) for own in shards) / workers
        visited.append((m,))
    return visited


def test_q5_and_q10_gradients_of_points_and_of_batches():
    assert [slope(2, [(1, 1)], 4), slope(2, [(2, 2)], 4), slope(2, LINE)] == [Fraction(1, 2), 2, 15]
    assert sum(slope(2, [point], 4) for point in LINE) == slope(2, LINE)
    assert [slope(2, [point]) for point in NOISY_LINE] == [4, 12, 30, 14]
    assert [slope(2, NOISY_LINE[:2]), slope(2, NOISY_LINE[2:])] == [8, 22]


@pytest.mark.parametrize(
    ("batches", "world_size", "iterations", "expected"),
    [
        ([[(1, 1)]], 1, 1, 0.002),
        ([[(1, 1)]], 1, 100, 0.18143),
        (one_by_one(LINE), 1, 4, 0.05891),
        (one_by_one(LINE), 1, 100, 0.78086),
        ([NOISY_LINE[:2], NOISY_LINE[2:]], 1, 2, 0.02995),
        ([NOISY_LINE[:2], NOISY_LINE[2:]], 1, 20, 0.26228),
        (TOGETHER, 2, 4, 0.05893),
    ],
)
def test_q6_q11_and_q12_final_weights(batches, world_size, iterations, expected):
    """To five digits; the whole enclosure of the last weight rounds to the same."""
    steps = train(batches, 0.001, iterations, world_size)
    [center], [radius] = steps[-1].weights.center, steps[-1].weights.radius
    assert len(steps) == iterations
    assert {round(float(center - radius), 5), round(float(center + radius), 5)} == {expected}


@pytest.mark.parametrize(
    ("data", "lr", "iterations"), [(NOISY_LINE, 0.016, 12), (((1, 2), (2, 6), (3, 7), (4, 4)), 1e-9, 4), (LINE, 10, 4)]
)
def test_q6_q7_and_q8_rates_that_fit_and_are_far_too_low_and_far_too_high(data, lr, iterations):
    steps = train(one_by_one(data), lr, iterations)
    assert [step.weights.center for step in steps] == by_hand(one_by_one(data), lr, iterations)


@pytest.mark.parametrize("lr", [0.001, 0.016, 0.064, 0.256])
def test_q9_a_thousand_iterations(lr):
    """Over an epoch, the error is multiplied by the product of (1 - 2 lr x^2), which decides its future."""
    shrinks = prod(1 - 2 * Fraction(lr) * x**2 for x, _ in NOISY_LINE)
    settled = by_hand(one_by_one(NOISY_LINE), lr, 4)[-1][0] / (1 - shrinks)
    last = train(one_by_one(NOISY_LINE), lr, 1000)[-1].weights
    assert last.holds((settled * (1 - shrinks**250),))
    assert (abs(last.center[0]) > 1e6) == (abs(shrinks) > 1) == (lr == 0.256)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_q12_workers_and_a_single_list_give_one_trajectory(precision):
    distributed, alone = (train(TOGETHER, 0.001, 4, world_size, precision) for world_size in (2, 1))
    assert [step.weights.center for step in distributed] == [step.weights.center for step in alone]
    assert [step.gradient.center for step in distributed] == [step.gradient.center for step in alone]
    assert [step.weights.center for step in alone] == by_hand(TOGETHER, 0.001, 4, workers=2)
