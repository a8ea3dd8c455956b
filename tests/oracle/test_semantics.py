"""Where more than one answer is right: short windows, uneven batches, averaging in every micro-batch."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings

from conformance.oracle.faults import CATALOGUE
from conformance.oracle.power import separation
from conformance.oracle.recurrence import Recurrence
from conformance.oracle.semantics import interpretations
from conformance.workloads.layout import Layout
from conformance.workloads.precision import PRECISIONS
from conformance.workloads.registry import standard
from conformance.workloads.workload import SGD, Sample, Workload

from .training import styles, train


def readings(name, *shape):
    return interpretations(*standard(name, *shape))


def run(interpretation, layout, precision="fp32"):
    return interpretation.recurrence(interpretation.workload, layout, PRECISIONS[precision]).run()


def names(found):
    return [interpretation.name for interpretation in found]


@pytest.mark.parametrize("shape", [("samples", 1, 1), ("batched", 2, 1), ("accumulated", 2, 2), ("batched", 3, 1)])
def test_full_windows_have_one_reading(shape):
    [only] = readings("momentum", *shape)
    assert only.name is None
    assert only.recurrence is Recurrence
    assert only.workload == standard("momentum", *shape)[0]


@pytest.mark.parametrize("shape", [("accumulated", 1, 2), ("accumulated", 1, 3), ("accumulated", 2, 2)])
def test_a_short_window_is_averaged_by_its_true_length_or_dropped(shape):
    workload, layout = standard("short-window", *shape)
    averaged, dropped = interpretations(workload, layout)
    assert names((averaged, dropped)) == [
        "the short last window is averaged by its true length",
        "the short last window is dropped",
    ]
    full, shorter = run(averaged, layout), run(dropped, layout)
    assert (len(full.steps), len(shorter.steps)) == (6, 5)
    assert full.steps[:5] == shorter.steps
    assert dropped.workload.batches == workload.batches[:5]


@pytest.mark.parametrize("shape", [("accumulated", 1, 2), ("accumulated", 1, 3), ("accumulated", 2, 2)])
def test_dividing_a_short_window_by_the_nominal_length_is_neither(shape):
    workload, layout = standard("short-window", *shape)
    [nominal] = [fault for fault in CATALOGUE if fault.name == "nominal-length"]
    wrong = nominal.recurrence(workload, layout, PRECISIONS["fp32"]).run()
    averaged, dropped = (run(reading, layout) for reading in interpretations(workload, layout))
    gap = separation(averaged.steps[-1], wrong.steps[-1])
    assert gap is None or gap > 1
    assert len(wrong.steps) != len(dropped.steps)


@pytest.mark.parametrize("shape", [("accumulated", 1, 2), ("accumulated", 2, 2)])
def test_an_uneven_window_counts_samples_or_micro_batches(shape):
    workload, layout = standard("uneven-batch", *shape)
    by_sample, by_micro_batch = interpretations(workload, layout)
    assert names((by_sample, by_micro_batch)) == [
        "every sample weighs the same in an uneven window",
        "every micro-batch weighs the same in an uneven window",
    ]
    samples, micro_batches = run(by_sample, layout), run(by_micro_batch, layout)
    assert len(samples.steps) == len(micro_batches.steps) == 6
    assert samples.steps[:5] == micro_batches.steps[:5]
    gap = separation(samples.steps[5], micro_batches.steps[5])
    assert gap is None or gap > 1


def test_a_mean_of_means_by_hand():
    """Six samples, of which a rank reads four and then two."""
    batch = tuple(Sample((Fraction(n),), Fraction(0)) for n in range(6))
    workload = Workload("uneven", (*[batch + batch[:2]], batch), SGD(Fraction(1)), (Fraction(1),))
    layout = Layout.of(workload, "accumulated", 1, 2)
    window = layout.windows(workload)[1]
    by_sample, by_micro_batch = (
        reading.recurrence(workload, layout, PRECISIONS["fp64"]).coefficients(window)
        for reading in interpretations(workload, layout)
    )
    assert by_sample == (Fraction(1, 6),) * 6
    assert by_micro_batch == (Fraction(1, 8),) * 4 + (Fraction(1, 4),) * 2


@pytest.mark.parametrize("shape", [("batched", 2, 1)])
def test_one_smaller_micro_batch_leaves_nothing_to_choose(shape):
    assert names(readings("uneven-batch", *shape)) == [None]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("shape", [("accumulated", 3, 2), ("accumulated", 3, 3), ("accumulated", 3, 4)])
def test_averaging_in_every_micro_batch_changes_rounding_only(shape, precision):
    workload, layout = standard("momentum", *shape)
    once, often = interpretations(workload, layout)
    assert names((once, often)) == [None, "ranks average in every micro-batch"]
    exact, bounded = run(once, layout, precision), run(often, layout, precision)
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
    workload, layout = standard("momentum", *shape)
    right = run(interpretations(workload, layout)[1], layout, precision)
    seen = train(workload, layout, PRECISIONS[precision], replace(style, averaged_every_time=True))
    for step, gradient, weights in zip(right.steps, seen.gradients, seen.weights, strict=True):
        assert step.gradient.holds(gradient)
        assert step.weights.holds(weights)
