"""Where more than one answer is right: short windows, uneven batches, averaging in every micro-batch, skipped steps."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings

from conformance.oracle.accepted_readings import readings
from conformance.oracle.faults import CATALOGUE, applicable
from conformance.oracle.power import separation
from conformance.oracle.recurrence import ScalerHistory
from conformance.workloads.layout import Layout
from conformance.workloads.model import Linear
from conformance.workloads.precision import PRECISIONS
from conformance.workloads.problem import Problem
from conformance.workloads.registry import standard
from conformance.workloads.workload import SGD, Sample, Workload

from .training import styles, train


def problem(name, *shape, precision="fp32"):
    return Problem(*standard(name, *shape), PRECISIONS[precision])


def run(reading):
    return reading.recurrence().run()


def ways(found):
    return [reading.ways for reading in found]


@pytest.mark.parametrize("shape", [("samples", 1, 1), ("batched", 2, 1), ("accumulated", 2, 2), ("batched", 3, 1)])
def test_full_windows_have_one_reading(shape):
    asked = problem("momentum", *shape)
    [only] = readings(asked)
    assert (only.ways, only.problem, only.deviations) == ((), asked, ())


@pytest.mark.parametrize("shape", [("accumulated", 1, 2), ("accumulated", 1, 3), ("accumulated", 2, 2)])
def test_a_short_window_is_averaged_by_its_true_length_or_dropped(shape):
    asked = problem("short-window", *shape)
    averaged, dropped = readings(asked)
    assert ways((averaged, dropped)) == [("last_window=step",), ("last_window=drop",)]
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
    by_sample, by_micro_batch, *_ = readings(problem("uneven-batch", *shape))
    assert ways((by_sample, by_micro_batch)) == [
        ("last_batch=use", "uneven_window=by samples"),
        ("last_batch=use", "uneven_window=by micro-batches"),
    ]
    samples, micro_batches = run(by_sample), run(by_micro_batch)
    assert len(samples.steps) == len(micro_batches.steps) == 6
    assert samples.steps[:5] == micro_batches.steps[:5]
    gap = separation(samples.steps[5], micro_batches.steps[5])
    assert gap > 1


def test_a_mean_of_means_by_hand():
    """Six samples, of which a rank reads four and then two."""
    batch = tuple(Sample((Fraction(n),), Fraction(0)) for n in range(6))
    workload = Workload("uneven", (*[batch + batch[:2]], batch), SGD(Fraction(1)), Linear(1), (Fraction(1),))
    layout = Layout.of(workload, "accumulated", 1, 2)
    window = layout.windows(workload)[1]
    by_sample, by_micro_batch = (
        reading.recurrence().coefficients(window)
        for reading in readings(Problem(workload, layout, PRECISIONS["fp64"]))[:2]
    )
    assert by_sample == (Fraction(1, 6),) * 6
    assert by_micro_batch == (Fraction(1, 8),) * 4 + (Fraction(1, 4),) * 2


def test_what_a_window_leaves_open_combines():
    """The last window of three ranks is short, and they may average in every micro-batch besides."""
    long, often_long, dropped, often_dropped = readings(problem("short-window", "accumulated", 3, 2))
    assert ways((long, often_long, dropped, often_dropped)) == [
        ("last_window=step",),
        ("last_window=step", "averaging=in every micro-batch"),
        ("last_window=drop",),
        ("last_window=drop", "averaging=in every micro-batch"),
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
    used, *_ = readings(asked)
    assert (used.ways, used.deviations) == (("last_batch=use",), ())
    assert not any(reading.deviations for reading in readings(asked))
    assert "mean-of-micro-batch-means" in {fault.name for fault in applicable(asked)}


def test_a_smaller_last_batch_may_be_dropped_and_may_be_all_of_a_window():
    used, _, dropped = readings(problem("uneven-batch", "batched", 2, 1))
    assert ways((used, dropped)) == [("last_batch=use",), ("last_batch=drop",)]
    assert (len(run(used).steps), len(run(dropped).steps)) == (6, 5)
    assert run(used).steps[:5] == run(dropped).steps


def test_whole_batches_may_be_dealt_to_the_ranks():
    """Of twelve samples one rank gets eight, the other four, and each rank's mean counts as much."""
    _, by_batch, _ = readings(problem("uneven-batch", "batched", 2, 1))
    assert by_batch.ways == ("last_batch=use", "uneven_window=by micro-batches")
    recurrence = by_batch.recurrence()
    assert recurrence.coefficients(recurrence.problem.windows[-1]) == (Fraction(1, 16),) * 8 + (Fraction(1, 8),) * 4


def test_what_dropping_a_batch_leaves_may_be_a_short_window():
    _, _, stepped, left_out = readings(problem("uneven-batch", "accumulated", 1, 2))
    assert ways((stepped, left_out)) == [
        ("last_batch=drop", "last_window=step"),
        ("last_batch=drop", "last_window=drop"),
    ]
    assert [len(run(reading).steps) for reading in (stepped, left_out)] == [6, 5]
    assert [len(micro_batch) for micro_batch in stepped.problem.windows[-1].shares[0]] == [8]


def test_a_batch_that_was_filled_up_counts_what_was_repeated():
    """Repeating each of its rows makes the numbers of a mean of means: then it is only read as what it is."""
    asked = problem("uneven-batch", "accumulated", 1, 2)
    last = asked.windows[-1].batch
    used, padded, *_ = readings(asked, [(*last, *last[8:])])
    assert ways((used, padded)) == [("last_batch=use", "uneven_window=by samples"), ("last_batch=pad",)]
    by_micro_batch = readings(asked)[1]
    assert run(padded).steps == run(by_micro_batch).steps
    assert not any(reading.ways == by_micro_batch.ways for reading in readings(asked, [(*last, *last[8:])]))


def test_a_short_window_that_was_filled_up_is_a_full_one():
    asked = problem("short-window", "accumulated", 1, 2)
    last, first = asked.windows[-1].batch, asked.windows[0].batch
    stepped, filled, dropped = readings(asked, [(*last, *first[: len(last)])])
    assert ways((stepped, filled, dropped)) == [("last_window=step",), ("last_window=pad",), ("last_window=drop",)]
    assert filled.problem.windows[-1].length == 2
    assert separation(run(filled).steps[5], run(stepped).steps[5]) > 1


@pytest.mark.parametrize(
    ("shape", "share"), [(("batched", 2, 1), 2), (("batched", 4, 1), 2), (("accumulated", 2, 2), 2)]
)
def test_ranks_without_data_count_in_the_average_or_not(shape, share):
    left_out, counted, dropped = readings(problem("uneven-ranks", *shape))
    assert ways((left_out, counted, dropped)) == [
        ("last_batch=join", "joined_ranks=left out"),
        ("last_batch=join", "joined_ranks=counted"),
        ("last_batch=drop",),
    ]
    runs = [run(reading) for reading in (left_out, counted, dropped)]
    assert all(one.certificate.exact for one in runs)
    without, over_all, shorter = (one.steps for one in runs)
    assert without[:5] == over_all[:5] == shorter
    assert [share * entry for entry in over_all[5].gradient.center] == list(without[5].gradient.center)


def test_ranks_that_go_on_with_repeated_data_have_full_windows():
    asked = problem("uneven-ranks", "batched", 2, 1)
    last, first = asked.windows[-1].batch, asked.windows[0].batch
    [filled] = [one for one in readings(asked, [(*last, *first[: len(last)])]) if "last_batch=pad" in one.ways]
    assert (filled.ways, filled.problem.windows[-1].with_data) == (("last_batch=pad",), 2)
    assert not any("last_batch=pad" in one.ways for one in readings(asked, [(*last, *first[:2])]))


@pytest.mark.parametrize("skips", [{2}, {0}, {1, 3}])
def test_after_a_skipped_step_the_schedule_may_be_that_of_the_windows(skips):
    asked = problem("overflow", "accumulated", 1, 2, precision="fp16")
    waits, advances = readings(asked, skips=skips)
    assert ways((waits, advances)) == [("schedule_on_skip=wait",), ("schedule_on_skip=advance",)]
    stepped = [window for window in range(6) if window not in skips]
    history = ScalerHistory(frozenset(skips))
    base, schedule = asked.workload.optimizer.lr, asked.workload.schedule
    assert [advances.recurrence(history).learning_rate(step) for step in range(len(stepped))] == [
        base * schedule[window] for window in stepped
    ]
    assert [waits.recurrence(history).learning_rate(step) for step in range(len(stepped))] == [
        base * schedule[step] for step in range(len(stepped))
    ]


@pytest.mark.parametrize(("name", "skips"), [("overflow", set()), ("overflow", {5}), ("overflow-clip", {2})])
def test_a_skip_that_no_schedule_shows_leaves_nothing_to_choose(name, skips):
    """No step was skipped, none came after it, or there is no schedule; a clip by norm has two readings of its own."""
    assert {*ways(readings(problem(name, "accumulated", 1, 2, precision="fp16"), skips=skips))} == {()}


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("shape", [("accumulated", 3, 2), ("accumulated", 3, 3), ("accumulated", 3, 4)])
def test_averaging_in_every_micro_batch_changes_rounding_only(shape, precision):
    once, often = readings(problem("momentum", *shape, precision=precision))
    assert ways((once, often)) == [(), ("averaging=in every micro-batch",)]
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
