"""The data sets: the exercise, the notebook's regression, and data that are exact in any order of samples.

The regression's data are fixed, so these tests are deterministic; a new draw of the correct
distribution would exceed their limits once in a thousand, over all columns.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import combinations
from math import atanh, log, sqrt
from random import Random
from statistics import NormalDist

import numpy as np
import pytest

from conformance.cases.case import Case
from conformance.oracle.recurrence import Recurrence
from conformance.workloads.data_sets import (
    ANY_ORDER,
    COEFFICIENTS,
    GRID,
    SHARD,
    any_order,
    exercise,
    line,
    multivariate,
    noisy_line,
    two_workers,
)  # fmt: skip
from conformance.workloads.layout import Layout, micro_batches, windows_of
from conformance.workloads.model import Linear
from conformance.workloads.precision import FP32
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


ALPHA = 0.001
MEANS = (0, 1, 2, 3)
N = 1000


@pytest.fixture(scope="module")
def columns():
    [batch] = multivariate().batches
    return np.array([[float(value) for value in sample.x] for sample in batch]).T


def limit(tests: int) -> float:
    """A bound on the absolute values of ``tests`` standard normal numbers, with probability 1 - ALPHA."""
    return NormalDist().inv_cdf(1 - ALPHA / (2 * tests))


def test_columns_are_normal_uncorrelated_and_have_means_0_1_2_3_and_unit_variance(columns):
    assert columns.shape == (4, N) and N % SHARD == 0
    means = [(column.mean() - mean) * sqrt(N) for column, mean in zip(columns, MEANS, strict=True)]
    # The sample variance of normal data has the variance 2 / (n - 1).
    variances = [(column.var(ddof=1) - 1) / sqrt(2 / (N - 1)) for column in columns]
    assert max(map(abs, (*means, *variances))) < limit(2 * len(MEANS))
    # Fisher's transform of a correlation is nearly normal with the variance 1 / (n - 3).
    pairs = list(combinations(columns, 2))
    assert max(abs(atanh(np.corrcoef(one, two)[0, 1])) * sqrt(N - 3) for one, two in pairs) < limit(len(pairs))
    # Kolmogorov and Smirnov's statistic, with its asymptotic quantile.
    critical = sqrt(-log(ALPHA / len(MEANS) / 2) / 2)
    for column, mean in zip(columns, MEANS, strict=True):
        quantiles = np.array([NormalDist(mean, 1).cdf(value) for value in np.sort(column)])
        steps = np.arange(N + 1) / N
        distance = max((steps[1:] - quantiles).max(), (quantiles - steps[:-1]).max())
        assert sqrt(N) * distance < critical


def test_samples_differ_and_a_rank_receives_every_number_unrounded_in_fp32():
    workload = multivariate()
    [batch] = workload.batches
    assert COEFFICIENTS == (5, 3, 2, 1) != workload.start
    assert len(set(batch)) == N
    for sample in batch:
        assert sample.y == 5 * sample.x[0] + 3 * sample.x[1] + 2 * sample.x[2] + 1 * sample.x[3]
        assert all((value / GRID).denominator == 1 for value in sample.x)
    numbers = [*workload.start, *(value for sample in batch for value in (*sample.x, sample.y))]
    assert all(FP32.holds(number) for number in numbers)


@pytest.mark.parametrize(("name", "batch_size"), [(name, size) for name, sizes in ANY_ORDER.items() for size in sizes])
def test_a_row_shows_which_sample_it_is(name, batch_size):
    workload = any_order(name, batch_size)
    samples = [sample.x for batch in workload.batches for sample in batch]
    assert len(samples) == len(set(samples)) == workload.samples
    assert workload.steps == 6


@pytest.mark.parametrize(("world_size", "accumulation"), [(1, 1), (1, 2), (2, 2), (2, 4), (4, 1)])
@pytest.mark.parametrize("name", ANY_ORDER)
def test_any_order_is_exact(name, world_size, accumulation):
    """Also an order with samples several times in a window, and others never."""
    problem = Case("ddp", world_size, accumulation, "fp32", name).problem
    draw, layout, workload = Random(name), problem.layout, problem.workload
    share = 6 // workload.epochs * layout.accumulation * layout.micro_batch_size
    for _ in range(4):
        orders = tuple(
            tuple(
                micro_batches(draw.choices(range(workload.samples), k=share), layout.micro_batch_size)
                for _ in range(world_size)
            )
            for _ in range(workload.epochs)
        )
        read = replace(problem, read=windows_of(workload, orders, layout.accumulation), in_order=False)
        assert Recurrence(read).run().certificate.exact


@pytest.mark.parametrize(
    ("name", "samples", "epochs", "size"), [("sampler-pads", 7, 3, 4), ("sampler-drops", 25, 2, 8)]
)
def test_what_a_sampler_repeats_or_drops_leaves_whole_windows(name, samples, epochs, size):
    problem = Case("ddp", 2, 2, "fp32", name).problem
    assert problem.workload.samples == samples
    assert [(window.epoch, len(window.batch)) for window in problem.windows] == [
        (epoch, size) for epoch in range(epochs) for _ in range(6 // epochs)
    ]
    of_epoch = [number for window in problem.windows if window.epoch == 0 for number in window.samples]
    assert len(of_epoch) - len(set(of_epoch)) == (name == "sampler-pads")
    assert samples - len(set(of_epoch)) == (name == "sampler-drops")
