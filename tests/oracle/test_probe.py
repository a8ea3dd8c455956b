"""One sample moved: which one goes where, and that nothing else changes."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from conformance.oracle.power import OneSampleMoved
from conformance.oracle.recurrence import Recurrence
from conformance.workloads.layout import Layout
from conformance.workloads.model import Linear
from conformance.workloads.precision import PRECISIONS
from conformance.workloads.problem import Problem
from conformance.workloads.workload import SGD, Sample, Workload


def workload(*weights, loss="mean"):
    batch = tuple(Sample((Fraction(n + 1),), Fraction(n * n), Fraction(weight)) for n, weight in enumerate(weights))
    return Workload("numbered", SGD(Fraction(1)), Linear(1), batches=(batch,), start=(Fraction(1),), loss=loss)


def moved(job, world, accumulation):
    layout = Layout.of(job, world, accumulation)
    [window] = layout.windows(job)
    return OneSampleMoved(Problem(job, layout, PRECISIONS["fp32"])).coefficients(window)


@pytest.mark.parametrize(
    ("world", "accumulation", "expected"),
    [
        (1, 1, [1, 1, 1, 1, 1, 1, 2, 0]),
        (2, 1, [1, 1, 1, 2, 1, 1, 1, 0]),
        (1, 2, [1, 1, 1, 2, 1, 1, 1, 0]),
        (2, 2, [1, 1, 1, 1, 1, 2, 1, 0]),
        (4, 2, [1, 1, 1, 1, 2, 1, 1, 0]),
    ],
)
def test_the_last_sample_is_replaced_by_its_neighbours(world, accumulation, expected):
    assert moved(workload(*[1] * 8), world, accumulation) == tuple(Fraction(times, 8) for times in expected)


def test_a_sample_that_weighs_nothing_is_not_the_one_that_moves():
    assert moved(workload(1, 1, 2, 0, loss="weighted"), 2, 1) == (Fraction(1, 4), Fraction(3, 4), 0, 0)


def test_a_single_sample_has_no_neighbour():
    job = workload(1)
    assert moved(job, 1, 1) == (1,)


def test_the_gradient_differs_and_all_else_is_the_same():
    job = replace(workload(*[1] * 8), schedule=(Fraction(1, 2),))
    layout = Layout.of(job, 2, 2)
    [right] = Recurrence(Problem(job, layout, PRECISIONS["fp64"])).steps()
    [wrong] = OneSampleMoved(Problem(job, layout, PRECISIONS["fp64"])).steps()
    assert right.gradient.center != wrong.gradient.center
    assert wrong.weights.center == (1 - wrong.gradient.center[0] / 2,)
