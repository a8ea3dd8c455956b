"""Golden numbers: every table and test case of the gradient-averaging exercise.

The right answers are rationals, so they are compared exactly where the exercise gives exact numbers, and rounded to
five digits where the exercise does so.
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

RATES = [0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256]


def form(data, n):
    """The loss of ``data`` where each squared error is divided by ``n``."""
    window = Window(0, 0, tuple(range(len(data))), points(data), ((tuple(range(len(data))),),), 1)
    return NormalForm.of(window, (Fraction(1, n),) * len(data), Linear(1))


def grad_point(m, data, N):
    return grad([data], m, N)


def grad_multi(m, data):
    return grad(data, m, len(data))


def grad(data, m, n):
    quadratic = form(data, n)
    return quadratic.matrix[0][0] * m - quadratic.offset[0]


def train(batches, lr, iterations, world_size=1, precision="fp64"):
    """The weight after each of ``iterations`` steps over ``batches``, which are repeated as often as needed."""
    workload = exercise("exercise", batches, lr, -(-iterations // len(batches)))
    layout = Layout.of(workload, world_size)
    return Recurrence(Problem(workload, layout, PRECISIONS[precision])).run(iterations).steps


def final(steps):
    """The last weight to five digits, if its whole enclosure rounds to the same."""
    [center], [radius] = steps[-1].weights.center, steps[-1].weights.radius
    [rounded] = {round(float(center - radius), 5), round(float(center + radius), 5)}
    return rounded


def one_by_one(data):
    return [[point] for point in data]


def by_hand(batches, lr, iterations):
    """Full-batch gradient descent in rationals, straight from the definition."""
    m, visited = Fraction(0), []
    for iteration in range(iterations):
        batch = batches[iteration % len(batches)]
        slope = sum(-2 * Fraction(x) * (Fraction(y) - m * Fraction(x)) for x, y in batch) / len(batch)
        m -= slope * Fraction(lr)
        visited.append(m)
    return visited


def test_q5_gradients():
    assert grad_point(m=2, data=(1, 1), N=4) == Fraction(1, 2)
    assert grad_point(m=2, data=(2, 2), N=4) == 2
    assert grad_multi(m=2, data=LINE) == 15
    assert sum(grad_point(2, point, 4) for point in LINE) == grad_multi(2, LINE)


def test_q6_one_iteration_is_exact():
    [step] = train([[(1, 1)]], lr=0.001, iterations=1)
    assert step.weights.center == (Fraction(0.002),)


@pytest.mark.parametrize(
    ("dataset", "iterations", "expected"),
    [([(1, 1)], 1, 0.002), ([(1, 1)], 100, 0.18143), (LINE, 4, 0.05891), (LINE, 100, 0.78086)],
)
def test_q6_training_loop(dataset, iterations, expected):
    steps = train(one_by_one(dataset), lr=0.001, iterations=iterations)
    assert len(steps) == iterations
    assert final(steps) == expected


def test_q6_by_hand():
    steps = train(one_by_one(NOISY_LINE), lr=0.016, iterations=12)
    assert [step.weights.center for step in steps] == [(m,) for m in by_hand(one_by_one(NOISY_LINE), 0.016, 12)]


@pytest.mark.parametrize(("lr", "data"), [(0.000000001, ((1, 2), (2, 6), (3, 7), (4, 4))), (10, LINE)])
def test_q7_and_q8_far_too_low_and_far_too_high(lr, data):
    """Nearly nothing, or a weight that grows with every step: in both cases exactly as by hand."""
    steps = train(one_by_one(data), lr=lr, iterations=4)
    assert [step.weights.center for step in steps] == [(m,) for m in by_hand(one_by_one(data), lr, 4)]
    last = abs(steps[-1].weights.center[0])
    assert last < 1e-6 if lr < 1 else last > 1e6


@pytest.mark.parametrize("lr", RATES)
def test_q9_a_thousand_iterations(lr):
    """Over an epoch the error is multiplied with the product of (1 - 2 lr x^2): that decides what becomes of it."""
    factors = [1 - 2 * Fraction(lr) * Fraction(x) ** 2 for x, _ in NOISY_LINE]
    settled = by_hand(one_by_one(NOISY_LINE), lr, 4)[-1] / (1 - prod(factors))
    steps = train(one_by_one(NOISY_LINE), lr=lr, iterations=1000)
    assert steps[-1].weights.holds((settled * (1 - prod(factors) ** 250),))

    weights = [float(step.weights.center[0]) for step in steps]
    growing = abs(weights[-1]) > abs(weights[-5]) > 1e6
    overshooting = any((before - after) * (after - later) < 0 for before, after, later in triples(weights[-5:]))
    assert growing == (abs(prod(factors)) > 1) == (lr == 0.256)
    # A single sample that overshoots by more than the error throws the weight about, and yet the epochs converge.
    unstable = any(abs(factor) > 1 for factor in factors)
    assert unstable == (lr in (0.064, 0.128, 0.256))
    assert (max(weights[-4:]) - min(weights[-4:]) > 1) == unstable
    assert overshooting
    assert (abs(weights[-1] - 1) < 0.25) == (lr <= 0.016)


def triples(values):
    return zip(values, values[1:], values[2:], strict=False)


def test_q10_gradients_of_points_and_of_batches():
    points_table = [grad_point(2, point, 1) for point in NOISY_LINE]
    batches_table = [grad_multi(2, NOISY_LINE[:2]), grad_multi(2, NOISY_LINE[2:])]
    assert points_table == [4, 12, 30, 14]
    assert batches_table == [8, 22]
    assert max(points_table) / min(points_table) == Fraction(15, 2)
    assert max(batches_table) / min(batches_table) == Fraction(11, 4)


@pytest.mark.parametrize(("iterations", "expected"), [(2, 0.02995), (20, 0.26228)])
def test_q11_batches(iterations, expected):
    steps = train([NOISY_LINE[:2], NOISY_LINE[2:]], lr=0.001, iterations=iterations)
    assert final(steps) == expected


@pytest.mark.parametrize("precision", PRECISIONS)
def test_q12_workers_and_a_single_list_give_one_trajectory(precision):
    dataset = [(*first, *second) for first, second in zip(*TWO_WORKERS, strict=True)]
    distributed = train(dataset, 0.001, 4, world_size=2, precision=precision)
    together = train(dataset, 0.001, 4, precision=precision)
    assert [step.weights.center for step in distributed] == [step.weights.center for step in together]
    assert [step.gradient.center for step in distributed] == [step.gradient.center for step in together]
    assert [step.weights.center for step in together] == [(m,) for m in averaging_workers(TWO_WORKERS, 0.001, 4)]


def averaging_workers(shards, lr, iterations):
    """The loop that Q12 asks for: every worker's gradient, their average, one step."""
    m, visited = Fraction(0), []
    for iteration in range(iterations):
        gradients = [grad_multi(m, shard[iteration % len(shard)]) for shard in shards]
        m -= Fraction(lr) * sum(gradients) / len(gradients)
        visited.append(m)
    return visited


def test_q12_final_weight():
    dataset = [(*first, *second) for first, second in zip(*TWO_WORKERS, strict=True)]
    assert final(train(dataset, 0.001, 4, world_size=2)) == 0.05893
