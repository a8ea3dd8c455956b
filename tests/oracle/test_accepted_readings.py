"""Choices with several correct answers: short windows, uneven batches, averages per micro-batch, skipped steps."""

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


def accepted(asked, *ways, **more):
    """The readings of a problem, which must start with these, each named by its ways."""
    found = readings(asked, **more)
    assert [" & ".join(reading.ways) for reading in found][: len(ways) or None] == list(ways or [""])
    return found


def filled_up(asked, repeated):
    """The last window with the samples of these numbers, too."""
    return {asked.windows[-1].index: asked.layout.filled_up(asked.workload, asked.windows[-1], repeated)}


@pytest.mark.parametrize("shape", [(1, 0), (2, 1), (2, 2), (3, 1)])
def test_full_windows_have_one_reading(shape):
    asked = problem("momentum", *shape)
    [only] = accepted(asked)
    assert (only.problem, only.deviations) == (asked, ())


@pytest.mark.parametrize("shape", [(1, 2), (1, 3), (2, 2)])
def test_a_short_window_is_averaged_by_its_true_length_or_dropped(shape):
    """Dividing it by the nominal length is neither."""
    asked = problem("short-window", *shape)
    averaged, dropped = accepted(asked, "last_window=step", "last_window=drop")
    full, shorter = run(averaged), run(dropped)
    assert (len(full.steps), len(shorter.steps)) == (6, 5)
    assert full.steps[:5] == shorter.steps
    assert dropped.problem.windows == asked.windows[:5]
    [nominal] = [fault for fault in CATALOGUE if fault.name == "nominal-length"]
    wrong = averaged.recurrence(None, nominal).run()
    assert separation(full.steps[-1], wrong.steps[-1]) > 1
    assert len(wrong.steps) != len(shorter.steps)


@pytest.mark.parametrize("shape", [(1, 2), (2, 2)])
def test_an_uneven_window_counts_samples_or_micro_batches(shape):
    by = "last_batch=use & uneven_window=by"
    by_sample, by_micro_batch, *_ = accepted(problem("uneven-batch", *shape), f"{by} samples", f"{by} micro-batches")
    samples, micro_batches = run(by_sample), run(by_micro_batch)
    assert len(samples.steps) == len(micro_batches.steps) == 6
    assert samples.steps[:5] == micro_batches.steps[:5]
    assert separation(samples.steps[5], micro_batches.steps[5]) > 1


def test_a_mean_of_means_by_hand():
    """Six samples; a rank reads four and then two."""
    batch = tuple(Sample((Fraction(n),), Fraction(0)) for n in range(6))
    workload = Workload("uneven", SGD(Fraction(1)), Linear(1), batches=(batch + batch[:2], batch), start=(Fraction(1),))
    asked = Problem(workload, Layout.of(workload, 1, 2), PRECISIONS["fp64"])
    by_sample, by_micro_batch, *_ = (one.recurrence().coefficients(asked.windows[1]) for one in readings(asked))
    assert by_sample == (Fraction(1, 6),) * 6
    assert by_micro_batch == (Fraction(1, 8),) * 4 + (Fraction(1, 4),) * 2


def test_what_a_window_leaves_open_combines():
    """The last window of three ranks is short, and they may average in every micro-batch besides."""
    early = " & averaging=in every micro-batch"
    names = [f"last_window={end}{when}" for end in ("step", "drop") for when in ("", early)]
    long, often_long, dropped, often_dropped = accepted(problem("short-window", 3, 2), *names)
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
    assert not any(reading.deviations for reading in accepted(asked, "last_batch=use"))
    assert "mean-of-micro-batch-means" in {fault.name for fault in applicable(asked)}


def test_a_smaller_last_batch_may_be_dropped_may_be_all_of_a_window_and_may_be_dealt_whole():
    """One rank gets eight of twelve samples, the other four, and both means count equally."""
    ways = ["last_batch=use", "last_batch=use & uneven_window=by micro-batches", "last_batch=drop"]
    used, by_batch, dropped = accepted(problem("uneven-batch", 2, 1), *ways)
    assert (len(run(used).steps), len(run(dropped).steps)) == (6, 5)
    assert run(used).steps[:5] == run(dropped).steps
    recurrence = by_batch.recurrence()
    assert recurrence.coefficients(recurrence.problem.windows[-1]) == (Fraction(1, 16),) * 8 + (Fraction(1, 8),) * 4


def test_what_dropping_a_batch_leaves_may_be_a_short_window():
    _, _, stepped, left_out = found = readings(problem("uneven-batch", 1, 2))
    assert [reading.ways for reading in found[2:]] == [
        ("last_batch=drop", "last_window=step"),
        ("last_batch=drop", "last_window=drop"),
    ]
    assert [len(run(reading).steps) for reading in (stepped, left_out)] == [6, 5]
    assert [len(micro_batch) for micro_batch in stepped.problem.windows[-1].shares[0]] == [8]


def test_each_epoch_may_end_in_the_same_way():
    """Windows keep their numbers where short ones are left out."""
    asked = problem("short-epochs", 2, 2)
    both = accepted(asked, "last_window=step", "last_window=drop")
    assert [[step.window for step in run(one).steps] for one in both] == [[*range(6)], [0, 1, 3, 4]]
    assert all(run(one).certificate.exact for one in both)
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
    ways = ["last_window=step", "last_window=drop", *["last_window=carry"] * 2]
    recurrence = accepted(asked, *ways, carries=True)[number].recurrence()
    after = next(window for window in recurrence.problem.windows if window.index == 3)
    assert after.samples == asked.windows[2].samples + asked.windows[3].samples
    assert recurrence.coefficients(after) == (of_left,) * 16 + (Fraction(1, 32),) * 32
    assert [step.window for step in recurrence.steps()] == [0, 1, 3, 4]
    # Nothing is left of the last epoch.
    assert len(readings(problem("short-window", 2, 2), carries=True)) == 2


def test_a_batch_that_was_filled_up_counts_what_was_repeated():
    """Repeating each of its rows gives the numbers of a mean of means: then there is only one reading."""
    asked = problem("uneven-batch", 1, 2)
    filled = filled_up(asked, asked.windows[-1].samples[8:])
    ways = ["last_batch=use & uneven_window=by samples", "last_batch=pad"]
    _, padded, *_ = found = accepted(asked, *ways, padded=[filled])
    by_micro_batch = readings(asked)[1]
    assert run(padded).steps == run(by_micro_batch).steps
    assert not any(reading.ways == by_micro_batch.ways for reading in found)


def test_a_short_window_that_was_filled_up_is_a_full_one():
    asked = problem("short-window", 1, 2)
    filled = filled_up(asked, range(len(asked.windows[-1].batch)))
    ways = [f"last_window={way}" for way in ("step", "pad", "drop")]
    stepped, padded, _ = accepted(asked, *ways, padded=[filled])
    assert padded.problem.windows[-1].length == 2
    assert separation(run(padded).steps[5], run(stepped).steps[5]) > 1


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
    ways = ["last_batch=join & joined_ranks=left out", "last_batch=join & joined_ranks=counted", "last_batch=drop"]
    runs = [run(reading) for reading in accepted(problem("uneven-ranks", *shape), *ways)]
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


SKIPPED = "schedule_on_skip=wait", "schedule_on_skip=advance"


@pytest.mark.parametrize("skips", [{2}, {0}, {1, 3}])
def test_after_a_skipped_step_the_schedule_may_be_that_of_the_windows(skips):
    asked = problem("overflow", 1, 2, precision="fp16")
    stepped = [window for window in range(6) if window not in skips]
    base, schedule = asked.workload.optimizer.lr, asked.workload.schedule
    for reading, places in zip(accepted(asked, *SKIPPED, skips=skips), (range(6), stepped), strict=True):
        recurrence = reading.recurrence(ScalerHistory(frozenset(skips)))
        rates = [recurrence.learning_rate(step) for step in range(len(stepped))]
        assert rates == [base * schedule[place] for place in places][: len(stepped)]


def test_after_a_skipped_step_the_schedule_of_one_group_may_be_that_of_the_windows_too():
    asked = problem("overflow", 1, 2, precision="fp16")
    own = Group(Fraction(1), Fraction(0), schedule=asked.workload.schedule)
    accepted(replace(asked, workload=replace(asked.workload, groups=(own,), schedule=None)), *SKIPPED, skips={2})


@pytest.mark.parametrize(("name", "skips"), [("overflow", set()), ("overflow", {5}), ("overflow-clip", {2})])
def test_a_skip_that_no_schedule_shows_leaves_nothing_to_choose(name, skips):
    """No step was skipped, none came after it, or there is no schedule; a clip by norm has its own two readings."""
    assert {reading.ways for reading in readings(problem(name, 1, 2, precision="fp16"), skips=skips)} == {()}


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("shape", [(3, 2), (3, 3), (3, 4)])
def test_averaging_in_every_micro_batch_changes_rounding_only(shape, precision):
    asked = problem("momentum", *shape, precision=precision)
    once, often = accepted(asked, "", "averaging=in every micro-batch")
    exact, bounded = run(once), run(often)
    assert exact.certificate.exact
    assert not bounded.certificate.exact
    for one, other in zip(exact.steps, bounded.steps, strict=True):
        assert other.weights.center == one.weights.center
        assert other.weights.holds(one.weights.center)
        assert not other.gradient.exact


@pytest.mark.in_turn
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
    trained, *left_out = accepted(problem("sampler-pads", 2, 2), "repeated_samples=trained")
    assert run(trained).certificate.exact
    assert {reading.ways[0] for reading in left_out} == {"repeated_samples=left out"}
    sizes = [len(window.batch) for window in left_out[0].problem.windows]
    assert sizes == [4, 3, 4, 3, 4, 3]
    once = [number for window in left_out[0].problem.windows[:2] for number in window.samples]
    assert sorted(once) == list(range(7))
    accepted(problem("sampler-drops", 2, 2))


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
