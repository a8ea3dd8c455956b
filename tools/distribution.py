"""Checks the distribution of a data set's columns: normal, with means 0, 1, 2 ..., uncorrelated, as in the notebook.

A correct draw exceeds the limit of each kind of check with probability :data:`ALPHA`, over all columns (or pairs).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from math import log, sqrt, tanh
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from conformance.workloads.workload import Workload

ALPHA = 0.001

Columns = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Check:
    """A statistic of one column, or of a pair of them, that must not exceed ``limit`` in magnitude."""

    what: str
    columns: tuple[int, ...]
    value: float
    limit: float

    @property
    def holds(self) -> bool:
        return abs(self.value) <= self.limit


def columns_of(workload: Workload) -> Columns:
    """The features of all samples, of shape (features, samples)."""
    samples = [sample for batch in workload.batches for sample in batch]
    columns: Columns = np.array([[float(value) for value in sample.x] for sample in samples]).T
    return columns


def checks(columns: Columns) -> list[Check]:
    """Mean, variance and Kolmogorov-Smirnov distance of each column, and the correlation of each pair."""
    size, count = len(columns), columns.shape[1]
    each = _two_sided(size)
    # The sample variance of normal data has the variance 2 / (n - 1).
    spread = each * sqrt(2 / (count - 1))
    # The asymptotic distribution of the distance: P(sqrt(n) D > x) = 2 exp(-2 x^2), to leading order.
    apart = sqrt(-log(ALPHA / size / 2) / 2 / count)
    found = []
    for index, column in enumerate(columns):
        found += [
            Check("mean", (index,), float(column.mean()) - index, each / sqrt(count)),
            Check("variance", (index,), float(column.var(ddof=1)) - 1, spread),
            Check("distance", (index,), _distance(column, index), apart),
        ]
    pairs = list(combinations(range(size), 2))
    # Fisher's transform of a correlation is nearly normal with the variance 1 / (n - 3).
    largest = tanh(_two_sided(len(pairs)) / sqrt(count - 3))
    matrix = np.asarray(np.corrcoef(columns))
    return [*found, *(Check("correlation", pair, float(matrix[pair]), largest) for pair in pairs)]


def _two_sided(tests: int) -> float:
    """The value that none of so many standard normal numbers exceeds in magnitude, with probability 1 - ALPHA."""
    return NormalDist().inv_cdf(1 - ALPHA / (2 * tests))


def _distance(column: Columns, mean: float) -> float:
    """The Kolmogorov-Smirnov distance: the largest gap between the column's distribution and the normal one."""
    normal = NormalDist(mean, 1)
    expected = np.array([normal.cdf(value) for value in np.sort(column).tolist()])
    steps = np.arange(len(column) + 1) / len(column)
    return float(max((steps[1:] - expected).max(), (expected - steps[:-1]).max()))
