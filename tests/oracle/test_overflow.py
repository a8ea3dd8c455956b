"""Overflows in fp16: which windows overflow for certain, which cannot, and what the loss scale does then."""

from __future__ import annotations

import random
from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from conformance.oracle.affine import Enclosure
from conformance.oracle.overflow import Scaler, overflow
from conformance.oracle.recurrence import Recurrence, ScalerHistory
from conformance.workloads.layout import Layout
from conformance.workloads.model import Linear
from conformance.workloads.precision import PRECISIONS
from conformance.workloads.problem import Problem
from conformance.workloads.registry import standard
from conformance.workloads.workload import SGD, LossScale, Sample, Workload

from .strategies import shapes
from .training import PLACEMENTS, Style, train

REPRESENTATIVE = [(1, 1), (2, 1), (2, 2), (3, 2), (4, 1)]


@st.composite
def large_jobs(draw):
    """One window of large numbers, around the range of fp16."""
    world, accumulation, size = draw(shapes(16))
    numbers = random.Random(draw(st.integers(0, 2**32)))
    x_size, y_size, w_size = (2.0 ** draw(st.integers(low, high)) for low, high in ((-3, 9), (-2, 12), (-3, 8)))
    features, weighted = draw(st.integers(1, 3)), draw(st.booleans())
    lightest = draw(st.sampled_from([1.0, 2.0**-12]))
    batch = tuple(
        Sample(
            tuple(Fraction(numbers.gauss(0, x_size)) for _ in range(features)),
            Fraction(numbers.gauss(0, y_size)),
            Fraction(numbers.choice([1.0, 2.0, 5.0]) * lightest) if weighted else Fraction(1),
        )
        for _ in range(world * accumulation * size)
    )
    workload = Workload(
        name="large",
        batches=(batch,),
        optimizer=SGD(Fraction(1, 1024)),
        model=Linear(features),
        start=tuple(Fraction(numbers.gauss(0, w_size)) for _ in range(features)),
        loss="weighted" if weighted else "mean",
        scale=LossScale(Fraction(2 ** draw(st.integers(0, 12)))),
    )
    return workload, Layout(world, accumulation, size)


def classified(workload, layout):
    [window] = layout.windows(workload)
    start = Enclosure(workload.start, (Fraction(0),) * len(workload.start))
    problem = Problem(workload, layout, PRECISIONS["fp16"])
    return overflow(problem, window, start, workload.scale.init_scale)


def overflows(workload, layout):
    """Whether each way of training overflows."""
    fitting = [name for name in PLACEMENTS if workload.loss == "mean" or not name.startswith("mean")]
    for number, placement in enumerate(fitting):
        style = Style(
            placement,
            number,
            one_forward=bool(number % 2),
            ranks_divided_first=bool(number // 2 % 2),
            dealt_otherwise=bool(number // 3 % 2),
        )
        yield bool(train(workload, layout, PRECISIONS["fp16"], style).skips)


@pytest.mark.parametrize(("verdict", "seen"), [("certain", {True}), ("impossible", {False})])
@settings(max_examples=15, suppress_health_check=[HealthCheck.filter_too_much])
@given(large_jobs())
def test_what_is_certain_happens_and_what_is_impossible_does_not(verdict, seen, job):
    assume(classified(*job) == verdict)
    assert set(overflows(*job)) == seen


@settings(max_examples=15, suppress_health_check=[HealthCheck.filter_too_much])
@given(large_jobs())
def test_what_depends_on_the_way_of_training_is_possible(job):
    seen = set(overflows(*job))
    assume(len(seen) == 2)
    assert classified(*job) == "possible"


def single(x, y, w, scale=1, weight=1):
    """The verdict for one sample."""
    sample = Sample((Fraction(x),), Fraction(y), Fraction(weight))
    loss = "mean" if weight == 1 else "weighted"
    scaler = LossScale(Fraction(scale))
    workload = Workload(
        "one", SGD(Fraction(1)), Linear(1), batches=((sample,),), start=(Fraction(w),), loss=loss, scale=scaler
    )
    return classified(workload, Layout.of(workload))


@pytest.mark.parametrize(
    ("sample", "verdict"),
    [
        # The loss scale decides.
        *(
            ({"x": 1, "y": 2**10, "w": 0, "scale": 2**power}, verdict)
            for power, verdict in ((3, "impossible"), (4, "possible"), (6, "possible"), (7, "certain"))
        ),
        # A forward may overflow though its residual is small.
        ({"x": 2**9, "y": 2**18, "w": 2**9}, "possible"),
        ({"x": 2**9, "y": 2**10, "w": 2}, "impossible"),
        # A small total weight divides up.
        ({"x": 2**8, "y": 0, "w": 1}, "possible"),
        ({"x": 2**8, "y": 0, "w": 1, "weight": Fraction(1, 2**10)}, "possible"),
    ],
)
def test_one_sample(sample, verdict):
    assert single(**sample) == verdict


def test_what_the_forward_pass_rounds_away_does_not_overflow_for_certain():
    """49984 + 12 is 49984 in fp16, so the residual of 12 vanishes at any loss scale."""
    batches = ((Sample((Fraction(1), Fraction(1)), Fraction(49984)),),)
    start, scale = (Fraction(49984), Fraction(12)), LossScale(Fraction(2**14))
    workload = Workload("cancelling", SGD(Fraction(1)), Linear(2), batches=batches, start=start, scale=scale)
    layout = Layout.of(workload)
    assert not train(workload, layout, PRECISIONS["fp16"], Style()).skips
    assert classified(workload, layout) == "possible"


@pytest.mark.parametrize("shape", REPRESENTATIVE)
def test_the_outlier_is_skipped_once_and_the_scale_is_halved(shape):
    right = Recurrence(Problem(*standard("overflow", *shape), PRECISIONS["fp16"])).run()
    assert right.skips == {2}
    assert right.overflows == ("impossible", "impossible", "certain", "impossible", "impossible", "impossible")
    assert right.scales == (128, 128, 128, 64, 64, 64, 128)
    assert [step.window for step in right.steps] == [0, 1, 3, 4, 5]


@pytest.mark.parametrize("shape", REPRESENTATIVE)
def test_the_growing_scale(shape):
    right = Recurrence(Problem(*standard("growing-scale", *shape), PRECISIONS["fp16"])).run()
    assert right.scales == (16, 16, 32, 32, 64, 64, 128)
    assert not right.skips


@pytest.mark.parametrize("precision", ["fp64", "fp32", "bf16"])
def test_without_a_scaler_nothing_is_skipped(precision):
    right = Recurrence(Problem(*standard("overflow", 1, 1), PRECISIONS[precision])).run()
    assert (right.skips, right.overflows, right.scales, right.history) == (frozenset(), (), (), None)
    assert len(right.steps) == 6


def test_a_trainers_own_scaler_is_followed():
    workload, layout = standard("overflow", 2, 1)
    own = (Fraction(4), Fraction(4), Fraction(1))
    right = Recurrence(Problem(workload, layout, PRECISIONS["fp16"]), ScalerHistory(frozenset({1, 2}), own)).run()
    assert [step.window for step in right.steps] == [0, 3, 4, 5]
    assert right.scales[:3] == own
    assert right.overflows[1:3] == ("impossible", "possible")


def test_a_skipped_window_changes_nothing():
    """Not the weights, not the momentum, not the schedule."""
    workload, layout = standard("momentum", 2, 1)
    skipping = Recurrence(Problem(workload, layout, PRECISIONS["fp16"]), ScalerHistory(frozenset({0}))).run()
    without = replace(workload, batches=workload.batches[1:])
    fresh = Recurrence(Problem(without, layout, PRECISIONS["fp16"])).run()
    assert [step.weights for step in skipping.steps] == [step.weights for step in fresh.steps]


factors = st.tuples(st.sampled_from([2.0, 4.0]), st.sampled_from([0.5, 0.25]))


@given(st.lists(st.booleans(), max_size=20), st.integers(1, 4), factors)
def test_the_scaler_is_that_of_torch(overflowed, interval, growth_and_backoff):
    growth, backoff = growth_and_backoff
    ours = Scaler(LossScale(Fraction(64), interval, Fraction(growth), Fraction(backoff)))
    theirs = torch.amp.GradScaler(
        "cpu", init_scale=64.0, growth_factor=growth, backoff_factor=backoff, growth_interval=interval
    )
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    for found in overflowed:
        theirs.scale(parameter.sum())
        parameter.grad = torch.tensor([float("inf") if found else 1.0])
        theirs.step(optimizer)
        theirs.update()
        ours.update(overflowed=found)
        assert ours.scale == Fraction(theirs.get_scale())
