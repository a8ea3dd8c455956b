"""No correct training in torch ever leaves the rounding-error bound, whatever its order, layout or implementation."""

from __future__ import annotations

import random
from dataclasses import replace
from fractions import Fraction
from functools import cache
from itertools import product

import pytest
from hypothesis import HealthCheck, event, given, settings, target
from hypothesis import strategies as st

from conformance.oracle.accepted_readings import Reading
from conformance.oracle.affine import Unbounded
from conformance.oracle.power import power
from conformance.oracle.recurrence import Recurrence, ScalerHistory
from conformance.workloads.layout import Layout
from conformance.workloads.model import Linear
from conformance.workloads.precision import PRECISIONS
from conformance.workloads.problem import Problem
from conformance.workloads.registry import standard
from conformance.workloads.workload import SGD, AdamW, Clip, LossScale, Sample, Workload

from .strategies import shapes
from .training import PLACEMENTS, Style, fitting, styles, train

precisions = st.sampled_from(list(PRECISIONS))


@st.composite
def optimizers(draw):
    lr = Fraction(draw(st.sampled_from([0.001, 0.01, 0.1, 0.3])))
    decay = Fraction(draw(st.sampled_from([0.0, 0.01, 0.3])))
    if draw(st.booleans()):
        betas = draw(st.sampled_from([(0.9, 0.999), (0.5, 0.9), (0.0, 0.99)]))
        eps = Fraction(draw(st.sampled_from([1e-8, 1e-3])))
        return AdamW(lr, *map(Fraction, betas), eps=eps, weight_decay=decay)
    momentum = draw(st.sampled_from([0.0, 0.3, 0.9]))
    nesterov = bool(momentum) and draw(st.booleans())
    dampening = 0.0 if nesterov else draw(st.sampled_from([0.0, 0.1, 0.7]))
    return SGD(lr, Fraction(momentum), Fraction(dampening), nesterov, decay)


@st.composite
def real_jobs(draw):
    """Random doubles, which only the widest format represents."""
    world, accumulation, size = draw(shapes())
    numbers = random.Random(draw(st.integers(0, 2**32)))
    features, weighted = draw(st.integers(1, 4)), draw(st.booleans())
    model = Linear(features, draw(st.booleans()))
    spread = draw(st.sampled_from([0.01, 1.0, 1.0, 20.0]))
    start = tuple(Fraction(numbers.gauss(0, 1)) for _ in range(model.size))
    short = draw(st.integers(1, accumulation * size)) * world
    steps = draw(st.integers(1, 5))
    batches = []
    for step in range(steps):
        length = short if step == steps - 1 else world * accumulation * size
        weights = [Fraction(numbers.choice([0.0, numbers.uniform(0.1, 3)])) for _ in range(length)]
        weights[0] = Fraction(0.7)
        batches.append(
            tuple(
                Sample(
                    tuple(Fraction(numbers.gauss(0.5, spread)) for _ in range(features)),
                    Fraction(numbers.gauss(0, 2)),
                    weight if weighted else Fraction(1),
                )
                for weight in weights
            )
        )
    clip = draw(st.sampled_from([None, None, Clip("norm", Fraction(0.7)), Clip("value", Fraction(0.3))]))
    workload = Workload(
        name="real",
        batches=tuple(batches),
        optimizer=draw(optimizers()),
        model=model,
        start=start,
        loss="weighted" if weighted else "mean",
        schedule=draw(st.sampled_from([None, tuple(map(Fraction, (1.0, 0.3, 0.7, 0.1, 0.5)))])),
        clip=clip,
        scale=LossScale(Fraction(2 ** draw(st.integers(0, 10))), growth_interval=draw(st.integers(1, 4))),
    )
    return workload, Layout(world, accumulation, size)


def error_over_bound(right, run):
    """The largest error of a run, as a share of what the bound allows; both may be zero."""
    shares = [0.0]
    for step, gradient, weights in zip(right.steps, run.gradients, run.weights, strict=True):
        for box, values in ((step.gradient, gradient), (step.weights, weights)):
            for center, radius, value in zip(box.center, box.radius, values, strict=True):
                shares.append(float(abs(value - center) / radius) if radius else 0.0)
    return max(shares)


def assert_enclosed(workload, layout, precision, style):
    """Train, follow the skips that there were, and look for a value outside. Returns the error over the bound."""
    problem = Problem(workload, layout, PRECISIONS[precision])
    run = train(workload, layout, PRECISIONS[precision], style)
    history = ScalerHistory(frozenset(run.skips), tuple(run.scales)) if problem.precision.scaled else None
    right = Recurrence(problem, history).run()
    assert run.windows == [step.window for step in right.steps]
    for window, overflow in enumerate(right.overflows):
        assert overflow != ("impossible" if window in run.skips else "certain")
    for step, gradient, weights in zip(right.steps, run.gradients, run.weights, strict=True):
        assert gradient is not None and step.gradient.holds(gradient)
        assert weights is not None and step.weights.holds(weights)
    return error_over_bound(right, run)


@settings(max_examples=250, suppress_health_check=[HealthCheck.too_slow])
@given(real_jobs(), precisions, styles())
def test_random_training_stays_in_the_bound(job, precision, style):
    workload, layout = job
    try:
        share = assert_enclosed(workload, layout, precision, fitting(style, workload, layout))
    except Unbounded:
        assert PRECISIONS[precision].wire.name == "fp16"
        event(f"{precision}: may overflow")
        return
    target(share, label="error over bound")
    event(
        f"{precision}: error over bound below {next(10**-power for power in range(20, -1, -1) if share <= 10**-power)}"
    )


@pytest.mark.parametrize("kind", ["SGD", "AdamW"])
@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(job=real_jobs(), style=styles())
def test_double_precision_has_no_slack_to_hide_in(kind, job, style):
    """Where coefficients are doubles too, their own rounding counts as much as the arithmetic's."""
    workload, layout = job
    if kind == "AdamW":
        optimizer = AdamW(Fraction(0.1), weight_decay=Fraction(0.01))
    else:
        optimizer = SGD(Fraction(0.1), Fraction(0.9), Fraction(0.1), weight_decay=Fraction(0.1))
    workload = replace(workload, optimizer=optimizer, clip=None)
    target(assert_enclosed(workload, layout, "fp64", fitting(style, workload, layout)))


@cache
def right_answer(name, precision, shape):
    workload, layout = standard(name, *shape)
    return Recurrence(Problem(workload, layout, PRECISIONS[precision])).run()


BOUNDED = [
    *product(("adamw", "clip-norm"), PRECISIONS, ((2, 2), (3, 2))),
    *((name, "fp32", (2, 2)) for name in ("line", "noisy-line", "two-workers")),
    ("line", "fp64", (1, 0)),
]


@pytest.mark.in_turn
@pytest.mark.parametrize(("name", "precision", "shape"), BOUNDED)
def test_standard_bounded_workloads(name, precision, shape, record_property):
    """Enclosed in every way of training; how much of the bound is used is a property in the JUnit report."""
    workload, layout = standard(name, *shape)
    right = right_answer(name, precision, shape)
    assert not right.certificate.exact
    shares = []
    for number, placement in enumerate(PLACEMENTS):
        style = Style(placement, number, by_reciprocal=number % 3 == 0, one_forward=number % 2 == 0)
        shares.append(assert_enclosed(workload, layout, precision, style))
    record_property("error over bound", max(shares))
    found = power(Reading(None, Problem(workload, layout, PRECISIONS[precision])), right, limit=16)
    assert found is not None and found.sufficient


@pytest.mark.parametrize("shape", [(1, 1), (1, 4), (2, 2)])
def test_weights_alone_show_each_fault_where_a_norm_is_clipped(shape):
    """In the widest bounds: an optimizer of the trainer's own shows no gradients."""
    workload, layout = standard("clip-norm", *shape)
    reading = Reading(None, Problem(workload, layout, PRECISIONS["bf16"]))
    found = power(reading, right_answer("clip-norm", "bf16", shape), by_weights=True)
    assert found is not None and found.sufficient


def test_multivariate_regression_in_fp32(record_property):
    """Sums of a thousand terms, over enough epochs for errors to build up."""
    workload = replace(standard("multivariate", 2, 2)[0], epochs=30)
    layout = Layout.of(workload, 2, 2)
    record_property("error over bound", assert_enclosed(workload, layout, "fp32", Style()))


def test_gradients_that_may_overflow_between_the_ranks_are_refused():
    """They did in one way of training; in a format with more range they have a bound."""
    workload, layout = standard("line", 2, 1)
    [batch, *_] = workload.batches
    steep = tuple(Sample((sample.x[0] * 128,), sample.y * 128, sample.weight) for sample in batch)
    workload = replace(workload, batches=(steep,), start=(Fraction(8),), epochs=1)
    run = train(workload, layout, PRECISIONS["fp16-compression"], Style())
    assert run.gradients[0] is None
    with pytest.raises(Unbounded, match=r"gradients of window 0 may overflow fp16 between the ranks"):
        Recurrence(Problem(workload, layout, PRECISIONS["fp16-compression"])).run()
    assert_enclosed(workload, layout, "fp32", Style())


def test_sums_that_are_too_long_for_any_bound_are_refused():
    """256 roundings of bf16 may take everything: better no verdict than a wrong one."""
    workload, layout = standard("multivariate", 1, 1)
    with pytest.raises(Unbounded, match=r"roundings in bf16 \(u = 2\^-8\) have no finite relative bound"):
        Recurrence(Problem(workload, layout, PRECISIONS["bf16"])).run(1)
