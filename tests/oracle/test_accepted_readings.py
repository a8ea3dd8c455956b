"""Where more than one answer is right: short windows, uneven batches, averaging in every micro-batch, skipped steps."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings

from conformance.oracle.accepted_readings import AVERAGES_WEIGHTS, must_step, readings
from conformance.oracle.faults import CATALOGUE, applicable
from conformance.oracle.power import power, separation
from conformance.oracle.recurrence import ScalerHistory
from conformance.workloads.layout import Layout
from conformance.workloads.model import Linear
from conformance.workloads.precision import PRECISIONS
from conformance.workloads.problem import Problem
from conformance.workloads.registry import standard
from conformance.workloads.workload import SGD, Group, Sample, Workload

from .training import Style, _Training, exactly, styles, train, tree_sum


def problem(name, *shape, precision="fp32"):
    return Problem(*standard(name, *shape), PRECISIONS[precision])


def run(reading):
    return reading.recurrence().run()


def filled_up(asked, repeated):
    """The last window with the samples of these numbers, too."""
    return {asked.windows[-1].index: asked.layout.filled_up(asked.workload, asked.windows[-1], repeated)}


def ways(found):
    return [reading.ways for reading in found]


@pytest.mark.parametrize("shape", [(1, 0), (2, 1), (2, 2), (3, 1)])
def test_full_windows_have_one_reading(shape):
    asked = problem("momentum", *shape)
    [only] = readings(asked)
    assert (only.ways, only.problem, only.deviations) == ((), asked, ())


@pytest.mark.parametrize("shape", [(1, 2), (1, 3), (2, 2)])
def test_a_short_window_is_averaged_by_its_true_length_or_dropped(shape):
    asked = problem("short-window", *shape)
    averaged, dropped = readings(asked)
    assert ways((averaged, dropped)) == [("last_window=step",), ("last_window=drop",)]
    full, shorter = run(averaged), run(dropped)
    assert (len(full.steps), len(shorter.steps)) == (6, 5)
    assert full.steps[:5] == shorter.steps
    assert dropped.problem.windows == asked.windows[:5]


@pytest.mark.parametrize("shape", [(1, 2), (1, 3), (2, 2)])
def test_dividing_a_short_window_by_the_nominal_length_is_neither(shape):
    [nominal] = [fault for fault in CATALOGUE if fault.name == "nominal-length"]
    accepted = readings(problem("short-window", *shape))
    averaged, dropped = map(run, accepted)
    wrong = accepted[0].recurrence(None, nominal).run()
    gap = separation(averaged.steps[-1], wrong.steps[-1])
    assert gap > 1
    assert len(wrong.steps) != len(dropped.steps)


@pytest.mark.parametrize("shape", [(1, 2), (2, 2)])
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
    workload = Workload("uneven", SGD(Fraction(1)), Linear(1), batches=(batch + batch[:2], batch), start=(Fraction(1),))
    layout = Layout.of(workload, 1, 2)
    window = layout.windows(workload)[1]
    by_sample, by_micro_batch = (
        reading.recurrence().coefficients(window)
        for reading in readings(Problem(workload, layout, PRECISIONS["fp64"]))[:2]
    )
    assert by_sample == (Fraction(1, 6),) * 6
    assert by_micro_batch == (Fraction(1, 8),) * 4 + (Fraction(1, 4),) * 2


def test_what_a_window_leaves_open_combines():
    """The last window of three ranks is short, and they may average in every micro-batch besides."""
    long, often_long, dropped, often_dropped = readings(problem("short-window", 3, 2))
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
    asked = problem("uneven-batch", 1, 2)
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
    used, _, dropped = readings(problem("uneven-batch", 2, 1))
    assert ways((used, dropped)) == [("last_batch=use",), ("last_batch=drop",)]
    assert (len(run(used).steps), len(run(dropped).steps)) == (6, 5)
    assert run(used).steps[:5] == run(dropped).steps


def test_whole_batches_may_be_dealt_to_the_ranks():
    """Of twelve samples one rank gets eight, the other four, and each rank's mean counts as much."""
    _, by_batch, _ = readings(problem("uneven-batch", 2, 1))
    assert by_batch.ways == ("last_batch=use", "uneven_window=by micro-batches")
    recurrence = by_batch.recurrence()
    assert recurrence.coefficients(recurrence.problem.windows[-1]) == (Fraction(1, 16),) * 8 + (Fraction(1, 8),) * 4


def test_what_dropping_a_batch_leaves_may_be_a_short_window():
    _, _, stepped, left_out = readings(problem("uneven-batch", 1, 2))
    assert ways((stepped, left_out)) == [
        ("last_batch=drop", "last_window=step"),
        ("last_batch=drop", "last_window=drop"),
    ]
    assert [len(run(reading).steps) for reading in (stepped, left_out)] == [6, 5]
    assert [len(micro_batch) for micro_batch in stepped.problem.windows[-1].shares[0]] == [8]


def test_each_epoch_may_end_in_the_same_way():
    """Windows keep their numbers where short ones are left out."""
    asked = problem("short-epochs", 2, 2)
    stepped, dropped = readings(asked)
    assert ways((stepped, dropped)) == [("last_window=step",), ("last_window=drop",)]
    assert [[step.window for step in run(one).steps] for one in (stepped, dropped)] == [[*range(6)], [0, 1, 3, 4]]
    assert all(run(one).certificate.exact for one in (stepped, dropped))
    assert must_step(asked) == {0, 1, 3, 4}


@pytest.mark.parametrize("stop", [3, 4])
def test_every_reading_shows_what_a_resume_forgets(stop):
    """Whether the third window, a short one, is dropped, and counted or not as one of those before the stop."""
    asked = replace(problem("short-epochs", 2, 2), resumed_at=stop)
    stepped, dropped = readings(asked)
    assert (stepped.problem.resumed_at, dropped.problem.resumed_at) == (stop, stop - 1)
    nearest = power(dropped, run(dropped), 16)
    assert nearest is not None
    assert nearest.sufficient, nearest.fault.name


@pytest.mark.parametrize(("number", "of_left"), [(2, Fraction(1, 32)), (3, Fraction(1, 16))])
def test_only_who_declares_it_adds_a_short_window_to_the_next_one(number, of_left):
    """It has half of a window's 32 samples, and counts as part of a window or as a mean."""
    asked = problem("short-epochs", 2, 2)
    added = readings(asked, carries=True)[number]
    assert added.ways == ("last_window=carry",)
    recurrence = added.recurrence()
    after = next(window for window in recurrence.problem.windows if window.index == 3)
    assert after.samples == asked.windows[2].samples + asked.windows[3].samples
    assert recurrence.coefficients(after) == (of_left,) * 16 + (Fraction(1, 32),) * 32
    assert [step.window for step in recurrence.steps()] == [0, 1, 3, 4]


def test_nothing_is_left_of_the_last_epoch():
    assert len(readings(problem("short-window", 2, 2), carries=True)) == 2


def test_a_batch_that_was_filled_up_counts_what_was_repeated():
    """Repeating each of its rows makes the numbers of a mean of means: then it is only read as what it is."""
    asked = problem("uneven-batch", 1, 2)
    filled = filled_up(asked, asked.windows[-1].samples[8:])
    used, padded, *_ = readings(asked, [filled])
    assert ways((used, padded)) == [("last_batch=use", "uneven_window=by samples"), ("last_batch=pad",)]
    by_micro_batch = readings(asked)[1]
    assert run(padded).steps == run(by_micro_batch).steps
    assert not any(reading.ways == by_micro_batch.ways for reading in readings(asked, [filled]))


def test_a_short_window_that_was_filled_up_is_a_full_one():
    asked = problem("short-window", 1, 2)
    stepped, filled, dropped = readings(asked, [filled_up(asked, range(len(asked.windows[-1].batch)))])
    assert ways((stepped, filled, dropped)) == [("last_window=step",), ("last_window=pad",), ("last_window=drop",)]
    assert filled.problem.windows[-1].length == 2
    assert separation(run(filled).steps[5], run(stepped).steps[5]) > 1


@pytest.mark.parametrize("name", ["short-epochs", "uneven-epochs"])
def test_each_fault_can_be_made_in_each_reading(name):
    """However last windows end, a wrong window has as many samples in its micro-batches as it averages over."""
    asked = problem(name, 2, 2)
    ends = {
        end.index: asked.layout.filled_up(asked.workload, end, range(32 - len(end.batch)))
        for end in asked.windows[2::3]
    }
    made = [
        (reading, fault.textbook(reading.problem))
        for reading in readings(asked, [ends])
        for fault in applicable(reading.problem)
    ]
    assert {"last_window=pad", "last_batch=pad"} & {way for reading, _ in made for way in reading.ways}
    for reading, wrong in made:
        for window in wrong.read():
            used = sorted(at for share in window.shares for micro_batch in share for at in micro_batch)
            assert used == list(range(len(window.batch))), (reading.ways, type(wrong))


def test_a_reading_may_be_other_than_what_is_declared():
    stepped, dropped = readings(problem("short-window", 2, 2))
    assert not stepped.denies({})
    assert not stepped.denies({"last_window": "step", "last_batch": "drop"})
    assert dropped.denies({"last_window": "step"})


@pytest.mark.parametrize(("shape", "share"), [((2, 1), 2), ((4, 1), 2), ((2, 2), 2)])
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
    asked = problem("uneven-ranks", 2, 1)
    last = len(asked.windows[-1].batch)
    [filled] = [one for one in readings(asked, [filled_up(asked, range(last))]) if "last_batch=pad" in one.ways]
    assert (filled.ways, filled.problem.windows[-1].with_data) == (("last_batch=pad",), 2)
    assert not any("last_batch=pad" in one.ways for one in readings(asked, [filled_up(asked, range(2))]))


@pytest.mark.parametrize("skips", [{2}, {0}, {1, 3}])
def test_after_a_skipped_step_the_schedule_may_be_that_of_the_windows(skips):
    asked = problem("overflow", 1, 2, precision="fp16")
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


def test_after_a_skipped_step_the_schedule_of_one_group_may_be_that_of_the_windows_too():
    asked = problem("overflow", 1, 2, precision="fp16")
    own = Group(Fraction(1), Fraction(0), schedule=asked.workload.schedule)
    asked = replace(asked, workload=replace(asked.workload, groups=(own,), schedule=None))
    assert ways(readings(asked, skips={2})) == [("schedule_on_skip=wait",), ("schedule_on_skip=advance",)]


@pytest.mark.parametrize(("name", "skips"), [("overflow", set()), ("overflow", {5}), ("overflow-clip", {2})])
def test_a_skip_that_no_schedule_shows_leaves_nothing_to_choose(name, skips):
    """No step was skipped, none came after it, or there is no schedule; a clip by norm has two readings of its own."""
    assert {*ways(readings(problem(name, 1, 2, precision="fp16"), skips=skips))} == {()}


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("shape", [(3, 2), (3, 3), (3, 4)])
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
@pytest.mark.parametrize("shape", [(3, 2), (3, 3), (3, 4)])
@settings(max_examples=4)
@given(style=styles(["mean, loss over window, ranks averaged"]))
def test_averaging_in_every_micro_batch_stays_in_its_bound(shape, precision, style):
    asked = problem("momentum", *shape, precision=precision)
    right = run(readings(asked)[1])
    seen = train(asked.workload, asked.layout, asked.precision, replace(style, averaged_every_time=True))
    for step, gradient, weights in zip(right.steps, seen.gradients, seen.weights, strict=True):
        assert step.gradient.holds(gradient)
        assert step.weights.holds(weights)


def test_a_sample_that_the_sampler_repeats_may_be_left_out():
    asked = problem("sampler-pads", 2, 2)
    trained, *left_out = readings(asked)
    assert trained.ways == ("repeated_samples=trained",)
    assert run(trained).certificate.exact
    assert {reading.ways[0] for reading in left_out} == {"repeated_samples=left out"}
    sizes = [len(window.batch) for window in left_out[0].problem.windows]
    assert sizes == [4, 3, 4, 3, 4, 3]
    once = [number for window in left_out[0].problem.windows[:2] for number in window.samples]
    assert sorted(once) == list(range(7))
    assert ways(readings(problem("sampler-drops", 2, 2))) == [()]


class _Rank(_Training):
    """One rank, which steps along its own gradients."""

    def window(self, window, rank):
        for parameter, gradient in zip(self.parameters, self._gradients(window, window.shares[rank]), strict=True):
            parameter.grad = gradient
        self.optimizer.step()
        self.scheduler.step()


def averaging(asked, style):
    """The weights after each average."""
    ranks = [_Rank(asked.workload, asked.layout, asked.precision, style) for _ in range(asked.layout.world_size)]
    for window in asked.windows:
        for number, rank in enumerate(ranks):
            rank.window(window, number)
        with torch.no_grad():
            for parts in zip(*(rank.parameters for rank in ranks), strict=True):
                # As torch's averagers do: a sum that is divided afterwards is exact here.
                average = tree_sum([part / len(ranks) for part in parts], ranks[0].random)
                for part in parts:
                    part.copy_(average)
        yield exactly(ranks[0].parameters)


@pytest.mark.parametrize("precision", ["fp64", "fp32", "bf16"])
@pytest.mark.parametrize("workload", ["momentum", "decay", "sgd"])
def test_three_ranks(workload, precision):
    asked = Problem(*standard(workload, 3, 2), PRECISIONS[precision])
    accepted = readings(asked)[0]
    right, bound = accepted.recurrence().run(), accepted.by(None, AVERAGES_WEIGHTS).recurrence().run()
    assert [step.weights.center for step in bound.steps] == [step.weights.center for step in right.steps]
    rounded = False
    for seed in range(4):
        for step, exact, seen in zip(bound.steps, right.steps, averaging(asked, Style(seed=seed)), strict=True):
            assert step.weights.holds(seen)
            rounded |= not exact.weights.holds(seen)
    assert rounded
    # Exact weights are multiples of this, also wrong ones.
    grid = Fraction(1, max(weight.denominator for step in right.steps for weight in step.weights.center))
    assert max(bound.steps[-1].weights.radius) < grid
