"""Where more than one answer is right: short windows, uneven batches, averaging in every micro-batch."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings

from conformance.oracle.accepted_readings import readings
from conformance.oracle.faults import CATALOGUE, applicable
from conformance.oracle.power import separation
from conformance.workloads.layout import Layout
from conformance.workloads.precision import PRECISIONS
from conformance.workloads.problem import Problem
from conformance.workloads.registry import standard
from conformance.workloads.workload import SGD, Sample, Workload

from .training import styles, train


def problem(name, *shape, precision="fp32"):
    return Problem(*standard(name, *shape), PRECISIONS[precision])


def run(reading):
    return reading.recurrence().run()


def names(found):
    return [reading.name for reading in found]


@pytest.mark.parametrize("shape", [("samples", 1, 1), ("batched", 2, 1), ("accumulated", 2, 2), ("batched", 3, 1)])
def test_full_windows_have_one_reading(shape):
    asked = problem("momentum", *shape)
    [only] = readings(asked)
    assert (only.name, only.problem, only.deviations) == (None, asked, ())


@pytest.mark.parametrize("shape", [("accumulated", 1, 2), ("accumulated", 1, 3), ("accumulated", 2, 2)])
def test_a_short_window_is_averaged_by_its_true_length_or_dropped(shape):
    asked = problem("short-window", *shape)
    averaged, dropped = readings(asked)
    assert names((averaged, dropped)) == [
        "the short last window is averaged by its true length",
        "the short last window is dropped",
    ]
    full, shorter = run(averaged), run(dropped)
    assert (len(full.steps), len(shorter.steps)) == (6, 5)
    assert full.steps[:5] == shorter.steps
    assert dropped.problem.workload.batches == asked.workload.batches[:5]


@pytest.mark.parametrize("shape", [("accumulated", 1, 2), ("accumulated", 1, 3), ("accumulated", 2, 2)])
def test_dividing_a_short_window_by_the_nominal_length_is_neither(shape):
    [nominal] = [fault for fault in CATALOGUE if fault.name == "nominal-length"]
    accepted = readings(problem("short-window", *shape))
    averaged, dropped = map(run, accepted)
    wrong = accepted[0].recurrence(None, nominal).run()
    gap = separation(averaged.steps[-1], wrong.steps[-1])
    assert gap > 1
    assert len(wrong.steps) != len(dropped.steps)


@pytest.mark.parametrize("shape", [("accumulated", 1, 2), ("accumulated", 2, 2)])
def test_an_uneven_window_counts_samples_or_micro_batches(shape):
    by_sample, by_micro_batch = readings(problem("uneven-batch", *shape))
    assert names((by_sample, by_micro_batch)) == [
        "every sample weighs the same in an uneven window",
        "every micro-batch weighs the same in an uneven window",
    ]
    samples, micro_batches = run(by_sample), run(by_micro_batch)
    assert len(samples.steps) == len(micro_batches.steps) == 6
    assert samples.steps[:5] == micro_batches.steps[:5]
    gap = separation(samples.steps[5], micro_batches.steps[5])
    assert gap > 1


def test_a_mean_of_means_by_hand():
    """Six samples, of which a rank reads four and then two."""
    batch = tuple(Sample((Fraction(n),), Fraction(0)) for n in range(6))
    workload = Workload("uneven", (*[batch + batch[:2]], batch), SGD(Fraction(1)), (Fraction(1),))
    layout = Layout.of(workload, "accumulated", 1, 2)
    window = layout.windows(workload)[1]
    by_sample, by_micro_batch = (
        reading.recurrence().coefficients(window) for reading in readings(Problem(workload, layout, PRECISIONS["fp64"]))
    )
    assert by_sample == (Fraction(1, 6),) * 6
    assert by_micro_batch == (Fraction(1, 8),) * 4 + (Fraction(1, 4),) * 2


def test_what_a_window_leaves_open_combines():
    """The last window of three ranks is short, and they may average in every micro-batch besides."""
    long, often_long, dropped, often_dropped = readings(problem("short-window", "accumulated", 3, 2))
    assert names((long, often_long, dropped, often_dropped)) == [
        "the short last window is averaged by its true length",
        "the short last window is averaged by its true length; ranks average in every micro-batch",
        "the short last window is dropped",
        "the short last window is dropped; ranks average in every micro-batch",
    ]
    for once, often in ((long, often_long), (dropped, often_dropped)):
        assert (once.averages_early, often.averages_early) == (False, True)
        assert [step.weights.center for step in run(often).steps] == [step.weights.center for step in run(once).steps]


def test_a_weighted_loss_says_what_a_sample_counts():
    """Also in an uneven window: averaging the means of its micro-batches is a catalogued fault."""
    asked = problem("uneven-batch", "accumulated", 1, 2)
    batches = tuple(
        tuple(replace(sample, weight=Fraction(index % 3)) for index, sample in enumerate(batch))
        for batch in asked.workload.batches
    )
    asked = replace(asked, workload=replace(asked.workload, batches=batches, loss="weighted"))
    [only] = readings(asked)
    assert (only.name, only.deviations) == (None, ())
    assert "mean-of-micro-batch-means" in {fault.name for fault in applicable(asked)}


@pytest.mark.parametrize("shape", [("batched", 2, 1)])
def test_one_smaller_micro_batch_leaves_nothing_to_choose(shape):
    assert names(readings(problem("uneven-batch", *shape))) == [None]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("shape", [("accumulated", 3, 2), ("accumulated", 3, 3), ("accumulated", 3, 4)])
def test_averaging_in_every_micro_batch_changes_rounding_only(shape, precision):
    once, often = readings(problem("momentum", *shape, precision=precision))
    assert names((once, often)) == [None, "ranks average in every micro-batch"]
    exact, bounded = run(once), run(often)
    assert exact.certificate.exact
    assert not bounded.certificate.exact
    for one, other in zip(exact.steps, bounded.steps, strict=True):
        assert other.weights.center == one.weights.center
        assert other.weights.holds(one.weights.center)
        assert not other.gradient.exact


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("shape", [("accumulated", 3, 2), ("accumulated", 3, 3), ("accumulated", 3, 4)])
@settings(max_examples=4)
@given(style=styles(["mean, loss over window, ranks averaged"]))
def test_averaging_in_every_micro_batch_stays_in_its_bound(shape, precision, style):
    asked = problem("momentum", *shape, precision=precision)
    right = run(readings(asked)[1])
    seen = train(asked.workload, asked.layout, asked.precision, replace(style, averaged_every_time=True))
    for step, gradient, weights in zip(right.steps, seen.gradients, seen.weights, strict=True):
        assert step.gradient.holds(gradient)
        assert step.weights.holds(weights)
