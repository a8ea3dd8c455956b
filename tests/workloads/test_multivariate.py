"""The multivariate regression has the distribution that its notebook asks for.

The data are fixed, so these tests never flicker; their limits are those that a fresh draw of the right distribution
exceeds once in a thousand, all columns taken together.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations
from math import atanh, log, sqrt
from statistics import NormalDist

import numpy as np
import pytest

from conformance.workloads.multivariate import COEFFICIENTS, GRID, SHARD, multivariate
from conformance.workloads.precision import FP32

ALPHA = 0.001
MEANS = (0, 1, 2, 3)
N = 1000


@pytest.fixture(scope="module")
def columns():
    [batch] = multivariate().batches
    return np.array([[float(value) for value in sample.x] for sample in batch]).T


def limit(tests: int) -> float:
    """What the absolute value of none of so many standard normal numbers exceeds, with probability 1 - ALPHA."""
    return NormalDist().inv_cdf(1 - ALPHA / (2 * tests))


def test_size(columns):
    assert columns.shape == (4, N)
    assert N % SHARD == 0


def test_column_means_are_0_1_2_3(columns):
    errors = [(column.mean() - mean) * sqrt(N) for column, mean in zip(columns, MEANS, strict=True)]
    assert max(map(abs, errors)) < limit(len(MEANS))


def test_columns_have_unit_variance(columns):
    # The sample variance of normal data has the variance 2 / (n - 1).
    errors = [(column.var(ddof=1) - 1) / sqrt(2 / (N - 1)) for column in columns]
    assert max(map(abs, errors)) < limit(len(MEANS))


def test_columns_are_normal(columns):
    # Kolmogorov and Smirnov's statistic, with its asymptotic quantile.
    critical = sqrt(-log(ALPHA / len(MEANS) / 2) / 2)
    for column, mean in zip(columns, MEANS, strict=True):
        quantiles = np.array([NormalDist(mean, 1).cdf(value) for value in np.sort(column)])
        steps = np.arange(N + 1) / N
        distance = max((steps[1:] - quantiles).max(), (quantiles - steps[:-1]).max())
        assert sqrt(N) * distance < critical


def test_columns_are_uncorrelated(columns):
    pairs = list(combinations(columns, 2))
    # Fisher's transform of a correlation is nearly normal with the variance 1 / (n - 3).
    errors = [atanh(np.corrcoef(one, two)[0, 1]) * sqrt(N - 3) for one, two in pairs]
    assert max(map(abs, errors)) < limit(len(pairs))


def test_targets_are_exactly_5_3_2_1():
    [batch] = multivariate().batches
    assert COEFFICIENTS == (5, 3, 2, 1)
    for sample in batch:
        assert sample.y == 5 * sample.x[0] + 3 * sample.x[1] + 2 * sample.x[2] + 1 * sample.x[3]


def test_a_rank_receives_every_number_unrounded_in_fp32():
    workload = multivariate()
    [batch] = workload.batches
    numbers = [*workload.start, *(value for sample in batch for value in (*sample.x, sample.y))]
    assert all(FP32.holds(number) for number in numbers)
    assert all((value / GRID).denominator == 1 for sample in batch for value in sample.x)


def test_every_sample_is_another_and_the_start_is_not_the_answer():
    workload = multivariate()
    assert len(set(workload.batches[0])) == N
    assert workload.start != tuple(map(Fraction, COEFFICIENTS))
