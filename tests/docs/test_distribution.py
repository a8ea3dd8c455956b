"""The checks of the notebook's data set pass for it, and each can fail."""

from __future__ import annotations

import numpy as np
import pytest

from conformance.workloads.data_sets import multivariate
from tools.distribution import checks, columns_of


@pytest.fixture
def columns():
    return columns_of(multivariate())


def broken(columns):
    return {(check.what, check.columns) for check in checks(columns) if not check.holds}


def test_the_data_set_is_as_the_notebook_asks(columns):
    assert columns.shape == (4, 1000)
    found = checks(columns)
    assert [check.what for check in found].count("correlation") == 6
    assert len(found) == 4 * 3 + 6
    assert broken(columns) == set()


def test_a_shifted_column(columns):
    columns[2] += 0.2
    assert broken(columns) == {("mean", (2,)), ("distance", (2,))}


def test_a_stretched_column(columns):
    columns[0] *= 1.2
    assert ("variance", (0,)) in broken(columns)


def test_a_column_of_another_shape_with_the_same_mean_and_variance(columns):
    columns[1] = np.random.default_rng(0).uniform(1 - 3**0.5, 1 + 3**0.5, 1000)
    assert broken(columns) == {("distance", (1,))}


def test_columns_that_are_correlated(columns):
    mixed = 0.2 * (columns[0]) + (1 - 0.2**2) ** 0.5 * (columns[3] - 3) + 3
    columns[3] = mixed
    assert broken(columns) == {("correlation", (0, 3))}


def test_columns_in_another_order(columns):
    assert {what for what, _ in broken(columns[::-1])} == {"mean", "distance"}
