"""Choices where several behaviours are valid: they are named if visible, and compared with the declared ones."""

from __future__ import annotations

import pytest

from conformance.oracle.accepted_readings import AveragedInEveryMicroBatch, MovesUnused
from conformance.oracle.faults.short_windows import NominalLength
from conformance.oracle.faults.weighted import MeanOfMicroBatchMeans
from conformance.oracle.recurrence import Recurrence
from conformance.verdict.judge import judge
from conformance.workloads.behaviour import warning

SHORT = "single-acc2-fp32-short-window"
UNEVEN = "single-acc2-fp32-uneven-batch"
OVERFLOW = "single-acc2-fp16-overflow"


def seen(run, **declares):
    """The verdict, and what was done."""
    judgement = judge(run.case, run.outcome(), declares)
    return judgement.verdict, [one.way for one in judgement.behaviour]


def refusal(run, **declares):
    judgement = judge(run.case, run.outcome(), declares)
    assert judgement.verdict == "FAIL (law)"
    return f"{judgement.headline}; {judgement.reason.advice}"


@pytest.fixture
def leftover(follow):
    """A run whose short last window goes forward and backward, and is not stepped. Its gradients are cleared."""
    run = follow(SHORT)
    run.remove(run.of("step")[5])
    [finished] = run.of("finished")
    finished["weights"] = run.of("step")[4]["weights"]
    return run


@pytest.fixture
def carried(leftover):
    leftover.remove(leftover.of("zero_grad")[5])
    return leftover


@pytest.mark.parametrize(("textbook", "way"), [(Recurrence, "skip"), (MovesUnused, "move")])
@pytest.mark.parametrize("missing", [0.0, None])
def test_parameters_that_a_window_does_not_use(follow, textbook, way, missing):
    run = follow("single-acc2-fp32-unused", textbook)
    unused = [number for number, name in enumerate(run.case.problem.workload.model.elements) if "experts.1" in name]
    for window in (2, 3):
        for number in unused:
            run.of("step")[window]["gradients"][number] = missing
    assert seen(run) == ("PASS (exact)", [f"unused_parameters={way}"])
    assert (warning(f"unused_parameters={way}", None) is not None) == (way == "move")


def test_a_parameter_that_is_used_has_a_gradient(follow):
    run = follow("single-acc2-fp32-unused")
    run.of("step")[0]["gradients"][run.case.problem.workload.model.elements.index("experts.1.weight[0]")] = None
    run.of("step")[0]["weights"][0] += 1.0
    assert seen(run)[0] == "FAIL (numerics)"


def test_what_did_not_show_is_not_named(follow):
    assert seen(follow("single-acc2-fp32-momentum"), last_window="drop", last_batch="pad") == ("PASS (exact)", [])


def test_a_wrong_run_shows_nothing(follow):
    run = follow("single-acc2-fp32-short-window")
    run.of("step")[0]["weights"][0] += 1.0
    assert seen(run, last_window="drop")[1] == []


def test_a_window_that_is_stepped(follow):
    assert seen(follow(SHORT)) == seen(follow(SHORT), last_window="step") == ("PASS (exact)", ["last_window=step"])
    assert refusal(follow(SHORT), last_window="drop") == (
        'the trainer sets last_window="drop", but steps a short last window, averaged by its true length; '
        'set last_window="step" if intended'
    )


def test_a_window_that_is_dropped(follow, leftover):
    for run in (leftover, follow(SHORT, windows=5)):
        assert seen(run) == seen(run, last_window="drop") == ("PASS (exact)", ["last_window=drop"])
        assert "but drops a short last window; set" in refusal(run, last_window="step")
        assert "but drops a short last window; set" in refusal(run, last_window="carry")


def test_gradients_that_are_left_behind(carried):
    assert seen(carried) == seen(carried, last_window="carry") == ("PASS (exact)", ["last_window=carry"])
    for declared in ("step", "drop"):
        assert "leaves its gradients behind; set" in refusal(carried, last_window=declared)


def test_gradients_that_the_next_epoch_may_clear(carried):
    """A call before the first window may be the beginning of each epoch, so nothing shows that dropping is untrue, and
    the trainer is believed."""
    first = carried.of("forward")[0]
    carried.before(first, {**carried.of("zero_grad")[0], "window": None, "micro_batch": None})
    _renumber(carried)
    carried.of("zero_grad")[0]["where"] = ["train.py", 1000, "train"]
    assert seen(carried) == ("PASS (exact)", ["last_window=carry"])
    assert seen(carried, last_window="drop") == ("PASS (exact)", ["last_window=drop"])
    assert refusal(carried, last_window="step")


@pytest.fixture
def elsewhere(carried):
    """A run whose gradients are moved to buffers of the trainer's own after each backward."""
    for event in carried.of("backward_begin"):
        event["gradients"] = "none"
    return carried


def test_gradients_that_are_kept_where_nobody_sees_them(elsewhere):
    """The trainer is believed, as nothing shows whether its buffers are cleared."""
    assert seen(elsewhere) == ("PASS (exact)", ["last_window=unstepped"])
    for declared in ("drop", "carry"):
        assert seen(elsewhere, last_window=declared) == ("PASS (exact)", [f"last_window={declared}"])
    assert '; set last_window="drop" or last_window="carry" if' in refusal(elsewhere, last_window="step")


def test_a_window_that_is_never_computed_is_dropped_wherever_gradients_are_kept(follow):
    run = follow(SHORT, windows=5)
    for event in run.of("backward_begin"):
        event["gradients"] = "none"
    assert seen(run) == ("PASS (exact)", ["last_window=drop"])
    assert "but drops a short last window; set" in refusal(run, last_window="carry")


def test_gradients_whose_computation_nobody_sees(carried):
    """By torch.func or a closed form: what the last window leaves is not seen either."""
    for kind in ("backward_begin", "backward_end"):
        for event in list(carried.of(kind)):
            carried.remove(event)
    _renumber(carried)
    assert seen(carried, last_window="carry") == ("PASS (exact)", ["last_window=carry"])


def test_gradients_that_the_next_window_clears(carried):
    """The line that clears gradients before the last window has cleared them before the first one too."""
    carried.before(carried.of("forward")[0], {**carried.of("zero_grad")[0], "window": None, "micro_batch": None})
    _renumber(carried)
    for event in carried.of("zero_grad"):
        event["where"] = ["train.py", 12, "train"]
    assert seen(carried) == seen(carried, last_window="drop") == ("PASS (exact)", ["last_window=drop"])


@pytest.fixture
def repeated(follow):
    """A run with the numbers of a mean of means, whose last micro-batch of four has each of its rows twice."""
    run = follow(UNEVEN, MeanOfMicroBatchMeans)
    last = run.of("forward")[-1]
    last["rows"] = [*last["rows"], *last["rows"]]
    return run


def test_a_batch_that_is_filled_up(follow, repeated):
    assert seen(repeated) == seen(repeated, last_batch="pad") == ("PASS (exact)", ["last_batch=pad"])
    assert "but fills up a smaller last batch by repeating samples" in refusal(repeated, last_batch="use")
    not_repeated = follow(UNEVEN, MeanOfMicroBatchMeans)
    assert seen(not_repeated)[1] == ["last_batch=use", "uneven_window=by micro-batches"]


def test_rows_that_are_repeated_and_do_not_count(follow):
    """The numbers are those of the batch as it is: the trainer left the repeated samples out of its loss."""
    run = follow(UNEVEN)
    last = run.of("forward")[-1]
    last["rows"] = [*last["rows"], *last["rows"]]
    assert seen(run)[1] == ["last_batch=use", "uneven_window=by samples"]


def test_rows_that_one_rank_alone_repeats(follow):
    """No even share of the ranks contains them, so they are no padded batch."""
    run = follow("ddp-w2-fp32-uneven-batch")
    last = run.of("forward", 1)[-1]
    last["rows"] = [*last["rows"], last["rows"][0]]
    assert seen(run)[1] == ["last_batch=use"]


def test_rows_that_come_twice_everywhere_fill_nothing_up(repeated):
    for event in repeated.of("forward")[:-1]:
        event["rows"] = [*event["rows"], *event["rows"]]
    assert "last_batch=pad" not in seen(repeated)[1]


def test_a_skipped_step(follow):
    """Of a schedule that waits; real trainers show the one that advances, in variants and mutants."""
    assert seen(follow(OVERFLOW)) == seen(follow(OVERFLOW), schedule_on_skip="wait")
    assert seen(follow(OVERFLOW)) == ("PASS (exact)", ["schedule_on_skip=wait"])
    assert "keeps the learning-rate schedule unchanged" in refusal(follow(OVERFLOW), schedule_on_skip="advance")


def test_numbers_that_prove_nothing_name_nothing(follow):
    """The loss scaler is wrong, so it is not said what a skipped step does to the schedule."""
    run = follow(OVERFLOW)
    run.of("update")[0]["scale_after"] *= 2
    assert seen(run, schedule_on_skip="advance") == ("FAIL (numerics)", [])


def _renumber(run):
    for events in run.ranks:
        events[:] = [{**event, "seq": seq} for seq, event in enumerate(events)]


SHORT_WINDOWS = (
    "single-acc2-fp32-short-window",
    "single-acc3-fp64-short-window",
    "ddp-w2-acc3-fp32-short-window",
    "single-acc2-fp16-short-window",
)
UNEVEN_BATCHES = ("single-acc2-fp32-uneven-batch", "ddp-w2-acc2-fp32-uneven-batch")


@pytest.mark.parametrize("name", SHORT_WINDOWS)
def test_short_window_averaged_by_its_true_length(follow, name):
    judgement = follow(name).expect("PASS (exact)")
    assert judgement.ways == ("last_window=step",)


@pytest.mark.parametrize("name", SHORT_WINDOWS)
def test_short_window_dropped(follow, name):
    judgement = follow(name, windows=5).expect("PASS (exact)")
    assert judgement.ways == ("last_window=drop",)


@pytest.mark.parametrize("name", SHORT_WINDOWS)
def test_short_window_divided_by_the_nominal_length(follow, name):
    judgement = follow(name, NominalLength).expect("FAIL (numerics)")
    assert judgement.difference.step == 5
    # The window before has the nominal length.
    assert judgement.suspects.explained_by == ("nominal-length", "total-of-window-before")
    assert judgement.ways == ()


@pytest.mark.parametrize("name", UNEVEN_BATCHES)
def test_uneven_window_by_samples(follow, name):
    judgement = follow(name).judged()
    assert judgement.verdict.startswith("PASS")
    assert judgement.ways == ("last_batch=use", "uneven_window=by samples")


@pytest.mark.parametrize("name", UNEVEN_BATCHES)
def test_uneven_window_by_micro_batches(follow, name):
    judgement = follow(name, MeanOfMicroBatchMeans).judged()
    assert judgement.verdict.startswith("PASS"), judgement.headline
    assert judgement.ways == ("last_batch=use", "uneven_window=by micro-batches")


@pytest.fixture(params=["momentum", "short-window"])
def within_the_wider_bound(follow, request):
    """A run whose gradients are off by what averaging in every micro-batch may round."""
    run = follow(f"ddp-w3-acc2-fp32-{request.param}", AveragedInEveryMicroBatch)
    for event in run.everywhere("step", 5):
        event["gradients"][0] += float(run.trajectory.steps[5].gradient.radius[0]) / 2
        event["weights"][0] += float(run.trajectory.steps[5].weights.radius[0]) / 2
    for rank, step in enumerate(run.everywhere("step", 5)):
        run.of("finished", rank)[0]["weights"] = step["weights"]
    return run


def test_ranks_that_average_in_every_micro_batch(within_the_wider_bound):
    for events in within_the_wider_bound.ranks:
        early = [{**event, "micro_batch": 0} for event in events if event["event"] == "collective"]
        events[:] = [{**event, "seq": seq} for seq, event in enumerate([*events[:-1], *early, events[-1]])]
    judgement = within_the_wider_bound.expect("PASS (bounded)")
    assert judgement.ways[-1] == "averaging=in every micro-batch"


def test_ranks_that_average_once_have_no_wider_bound(within_the_wider_bound):
    judgement = within_the_wider_bound.expect("FAIL (numerics)")
    assert judgement.difference.step == 5
