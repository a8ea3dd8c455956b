"""Whole runs: wherever the certificate says exact, every correct way of training in torch gives the oracle's bits."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import HealthCheck, assume, given, reject, settings
from hypothesis import strategies as st

from conformance.oracle.affine import Unbounded
from conformance.oracle.recurrence import Recurrence
from conformance.workloads.layout import Layout
from conformance.workloads.model import Linear
from conformance.workloads.precision import PRECISIONS
from conformance.workloads.problem import Problem
from conformance.workloads.registry import made, standard
from conformance.workloads.workload import SGD, LossScale, Sample, Workload

from .strategies import dyadic_jobs, recipe_jobs
from .training import PLACEMENTS, Style, fitting, styles, train

precisions = st.sampled_from(list(PRECISIONS))
filtered = [HealthCheck.filter_too_much, HealthCheck.too_slow]


def right_answer(job, precision):
    workload, layout = job
    return Recurrence(Problem(workload, layout, PRECISIONS[precision])).run()


def is_certified(job, precision):
    try:
        return right_answer(job, precision).certificate.exact
    except Unbounded:
        # Gradients may overflow between the ranks, where no scaler sees it.
        assert PRECISIONS[precision].wire.name == "fp16"
        return False


def assert_equal_to_the_bit(job, precision, style, right):
    workload, layout = job
    run = train(workload, layout, PRECISIONS[precision], style)
    if PRECISIONS[precision].scaled:
        assert run.skips == right.skips
        assert tuple(run.scales) == right.scales
    assert run.windows == [step.window for step in right.steps]
    assert run.gradients == [step.gradient.center for step in right.steps]
    assert run.weights == [step.weights.center for step in right.steps]


def inexact_somewhere(job, precision, right):
    """Whether brute force finds a correct way of training that does not give the rationals."""
    workload, layout = job
    for number, placement in enumerate(("sum, loss over total", "sum, gradients over total", "every sample's factor")):
        run = train(workload, layout, PRECISIONS[precision], Style(placement, number, by_reciprocal=number == 1))
        if (run.gradients, run.weights) != (
            [step.gradient.center for step in right.steps],
            [step.weights.center for step in right.steps],
        ):
            return True
    return False


@settings(max_examples=80, suppress_health_check=filtered)
@given(dyadic_jobs(), precisions, st.lists(styles(), min_size=3, max_size=3))
def test_certified_random_workloads(job, precision, ways):
    assume(is_certified(job, precision))
    for style in ways:
        assert_equal_to_the_bit(job, precision, fitting(style, *job), right_answer(job, precision))


def test_what_may_overflow_on_the_wire_is_not_certified():
    rows = (((4, 37, 4), (3, 39, 3), (-4, -37, 2), (-3, 51, 1), (-2, 19, 2), (3, 39, 3)),
            ((3, -3, 4), (-1, 2, 1), (-2, 1, 1), (4, -8, 3), (-4, 17, 2), (3, -3, 1)))  # fmt: skip
    batches = tuple(
        tuple(Sample((Fraction(x),), Fraction(y), Fraction(weight)) for x, y, weight in batch) for batch in rows
    )
    start, scale = (Fraction(-2),), LossScale(Fraction(1), 1)
    workload = Workload(
        "overflows", SGD(Fraction(1)), Linear(len(start)), batches=batches, start=start, loss="weighted", scale=scale
    )
    job = workload, Layout(1, 2, 3)
    with pytest.raises(Unbounded, match="gradients of window 1 may overflow fp16 between the ranks"):
        right_answer(job, "fp16-compression")
    assert not is_certified(job, "fp16-compression")


@settings(max_examples=15, suppress_health_check=filtered)
@given(recipe_jobs(), st.permutations(list(PRECISIONS)), styles())
def test_certified_random_recipes(job, order, style):
    exact = [precision for precision in order if is_certified(job, precision)]
    assume(exact)
    for precision in exact[:2]:
        assert_equal_to_the_bit(job, precision, fitting(style, *job), right_answer(job, precision))


@pytest.mark.in_turn
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", ["momentum", "clip-value", "decay", "weighted", "sgd", "short-window", "uneven-batch"])
@settings(max_examples=3)
@given(data=st.data())
def test_standard_workloads(name, precision, data):
    """Those of the default matrix; the odd world sizes and windows among them."""
    shapes = [(2, 2), (2, 1)]
    if name != "uneven-batch":
        shapes += [(3, 2), (1, 3)]
    if name in ("momentum", "clip-value"):
        shapes += [(1, 0), (3, 3), (4, 3), (4, 4)]
    job = standard(name, *data.draw(st.sampled_from(shapes)))
    right = right_answer(job, precision)
    assert right.certificate.exact
    style = data.draw(styles())
    assert_equal_to_the_bit(job, precision, fitting(style, *job), right)


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("shape", [(2, 1), (3, 2)])
def test_overflows_are_skipped_and_the_rest_is_exact(shape, placement):
    job = standard("overflow", *shape)
    right = right_answer(job, "fp16")
    assert right.skips == {2}
    for one_forward in (False, True):
        assert_equal_to_the_bit(job, "fp16", Style(placement, one_forward=one_forward), right)


@st.composite
def perturbations(draw):
    """A standard workload that is certified, and the same with one number that is a little off."""
    name, precision = draw(st.sampled_from(["momentum", "clip-value", "sgd"])), draw(precisions)
    workload, layout = standard(name, *draw(st.sampled_from([(2, 2), (3, 1), (1, 3)])))
    step, index = draw(st.integers(0, 1)), draw(st.integers(0, workload.batch_size - 1))
    little = Fraction(draw(st.sampled_from([-3, -1, 1, 3])), 2 ** draw(st.integers(1, 60)))
    sample = workload.batches[step][index]
    what = draw(st.sampled_from(["y", "x", "start", "lr", "momentum"]))
    if what in ("lr", "momentum"):
        value = getattr(workload.optimizer, what) + abs(little)
        wrong = replace(workload, optimizer=replace(workload.optimizer, **{what: value}))
    elif what == "start":
        wrong = replace(workload, start=(workload.start[0] + little, *workload.start[1:]))
    else:
        moved = {"y": sample.y + little} if what == "y" else {"x": (sample.x[0] + little, *sample.x[1:])}
        batch = list(workload.batches[step])
        batch[index] = replace(sample, **moved)
        batches = list(workload.batches)
        batches[step] = tuple(batch)
        wrong = replace(workload, batches=tuple(batches))
    return (workload, layout), (replace(wrong, batches=wrong.batches[:2]), layout), precision


@settings(max_examples=40, suppress_health_check=filtered)
@given(perturbations())
def test_what_comes_out_inexact_is_refused(perturbed):
    certified, wrong, precision = perturbed
    assert right_answer(certified, precision).certificate.exact
    right = right_answer(wrong, precision)
    assume(inexact_somewhere(wrong, precision, right))
    assert not right.certificate.exact
    assert right.certificate.reason


@settings(max_examples=40, suppress_health_check=filtered)
@given(dyadic_jobs(), precisions)
def test_random_workloads_that_come_out_inexact_are_refused(job, precision):
    try:
        right = right_answer(job, precision)
    except Unbounded:
        reject()
    assume(inexact_somewhere(job, precision, right))
    assert not right.certificate.exact


def small(*samples, **changes):
    """A workload of one batch, on weights of zero and ones."""
    made = tuple(Sample(tuple(map(Fraction, x)), Fraction(y), Fraction(weight)) for x, y, weight in samples)
    features = len(made[0].x)
    return Workload(
        "small", SGD(Fraction(1, 2)), Linear(features), batches=(made,), start=(Fraction(1),) * features, **changes
    )


#: Each is exact but for one thing: (workload, (world size, accumulation), precision, what the refusal says).
REFUSED = {
    "more bits than the forward pass has": (
        small(((257,), 0, 1), ((0,), 0, 1)), (1, 1), "bf16", "forward, window 0: a sum needs 9 bits, bf16 has 8"),
    "a third of a number that is not a multiple of three": (
        small(((1,), 0, 1), ((2,), 0, 1), ((1,), 3, 1)), (1, 1), "fp64",
        "division, window 0: a residual is not a multiple of 3"),
    "a window of three over a power of two": (
        small(*[((1,), -2, weight) for weight in (1, 1, 2)], loss="weighted"), (3, 1), "fp32",
        "division, window 0: a correct trainer may divide by 3, the total does not"),
    "a weight times the rounded fifth": (
        small(((1,), -4, 3), ((2,), -3, 2), loss="weighted"), (1, 1), "fp64",
        "division, window 0: multiplying by the rounded 3/5 is not exact in fp64"),
    "a whole share in one forward pass": (
        small(*[((3,), 3 - 15, 1)] * 8), (1, 4), "bf16", "backward, window 0: a sum needs 9 bits, bf16 has 8"),
    "a weight's factor that is not dyadic": (
        small(((1,), 0, Fraction(1, 3)), ((1,), 0, Fraction(2, 3)), loss="weighted"), (1, 1), "fp64",
        "forward, window 0: a term is not a dyadic rational"),
    "a total of a third": (
        small(((1,), 0, Fraction(1, 3)), loss="weighted"), (1, 1), "fp64",
        "division, window 0: the total weight is not a dyadic rational"),
    "a learning rate of a tenth": (
        replace(small(((1,), 0, 1)), optimizer=SGD(Fraction(1, 10))), (1, 1), "fp64",
        "update, window 0: a factor is not representable in fp64"),
    "a step that is too small for the weight": (
        replace(small(((1,), 0, 1)), optimizer=SGD(Fraction(1, 2**40))), (1, 1), "fp32",
        "update, window 0: a sum needs 40 bits, fp32 has 24"),
    "a loss scale of three": (
        small(((1,), 0, 1), scale=LossScale(Fraction(3))), (1, 1), "fp16",
        "loss scale, window 0: 3 is not a power of two"),
    "a gradient below the format": (
        small(*[((Fraction(1, 2**13),), 0, 1)] * 2), (1, 1), "fp16",
        "backward, window 0: a value may underflow fp16"),
    "a quotient beyond the format": (
        small(*[((2**8,), 0, Fraction(1, 2**9))] * 2, loss="weighted", scale=LossScale(Fraction(1))), (1, 1), "fp16",
        "backward, window 0: a value may overflow fp16"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_name_the_stage_and_the_reason(name):
    workload, (world, accumulation), precision, reason = REFUSED[name]
    right = right_answer((workload, Layout.of(workload, world, accumulation)), precision)
    assert not right.certificate.exact
    assert right.certificate.reason == reason


def test_a_certificate_keeps_the_tightest_proof_of_each_stage():
    certificate = right_answer(standard("momentum", 2, 2), "bf16").certificate
    tightest = {proof.stage: proof for proof in certificate.tightest()}
    assert {"forward", "backward", "accumulation", "all-reduce", "momentum", "update"} <= set(tightest)
    for proof in certificate.proofs:
        assert proof.exact
        spare = proof.available - proof.bits
        assert spare >= tightest[proof.stage].available - tightest[proof.stage].bits
    assert certificate.reason is None


def test_the_tightest_proof_of_a_refused_stage_is_the_first_refusal():
    certificate = right_answer(standard("adamw", 2, 2), "fp32").certificate
    refused = [proof for proof in certificate.tightest() if not proof.exact]
    assert "update" in {proof.stage for proof in refused}
    for proof in refused:
        assert proof == next(p for p in certificate.proofs if p.stage == proof.stage and not p.exact)


def test_a_skipped_window_needs_no_proof():
    right = right_answer((made("overflow", 24), Layout.of(made("overflow", 24))), "fp16")
    assert right.certificate.exact
    assert {proof.window for proof in right.certificate.proofs} == {0, 1, 3, 4, 5}
