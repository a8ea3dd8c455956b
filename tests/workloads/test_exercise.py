"""The data sets are those of the gradient-averaging exercise."""

from __future__ import annotations

from fractions import Fraction

from conformance.workloads.exercise import exercise, line, noisy_line, two_workers
from conformance.workloads.layout import Layout
from conformance.workloads.model import Linear
from conformance.workloads.workload import SGD


def pairs(samples):
    return [(*sample.x, sample.y) for sample in samples]


LINE = [(1, 1), (2, 2), (3, 3), (4, 4)]
NOISY_LINE = [(1, 0), (2, 1), (3, 1), (4, Fraction(25, 4))]


def test_lines():
    assert [pairs(batch) for batch in line().batches] == [LINE]
    assert [pairs(batch) for batch in noisy_line().batches] == [NOISY_LINE]


def test_two_ranks_read_the_two_workers_shards():
    workload = two_workers()
    layout = Layout.of(workload, 2)
    shards = [
        [pairs([window.batch[index] for index in window.shares[rank][0]]) for window in layout.windows(workload)[:2]]
        for rank in range(2)
    ]
    assert shards == [[LINE[:2], LINE[2:]], [NOISY_LINE[:2], NOISY_LINE[2:]]]


def test_an_exercise_is_gradient_descent_from_zero_with_the_learning_rate_as_a_double():
    workload = exercise("q", [[(1, 2)], [(3, 4)]], 0.001, 5)
    assert workload.optimizer == SGD(Fraction(0.001))
    assert (workload.start, workload.model, workload.steps) == ((0,), Linear(1), 10)
