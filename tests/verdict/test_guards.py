"""Guards, without which equality means nothing. In most tests all numbers are correct, and one guard fails."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest

from conformance.laws.subjects import Events
from conformance.oracle.faults.averaging import NotSynchronised
from conformance.trace.events import read
from conformance.verdict.guards import idle_after


def broken(judgement):
    return [guard.name for guard in judgement.guards if not guard.passed]


def test_world_size_one_reached(follow):
    run = follow("ddp-w2-fp32-momentum")
    for event in run.everywhere("topology", 0):
        event |= {"world_size": 1, "rank_reached": 0}
    run.expect(
        "FAIL (numerics)",
        headline="the trainer has world size 1 instead of 2",
        advice="initialise the process group in every rank",
        broken=["world size reached"],
    )


def test_ranks_may_meet_without_a_process_group(follow):
    """Correct numbers show that they did."""
    run = follow("ddp-w2-fp32-momentum")
    for event in run.everywhere("topology", 0):
        event |= {"world_size": 1, "rank_reached": 0, "via": None}
    run.expect("PASS (exact)", broken=[])


def test_no_collective_while_training(follow):
    run = follow("ddp-w2-fp32-momentum")
    for rank in (0, 1):
        run.remove(*(event for event in run.of("collective", rank) if event["phase"] == "training"))
    assert run.judged().verdict == "PASS (exact)", "correct numbers of ranks with different shares prove an exchange"
    for event in run.everywhere("step", 0):
        event["weights"][0] += 1
    judgement = run.expect(
        "FAIL (numerics)",
        "ranks 0 and 1 took part in no collective or message that could average",
        broken=["collectives while training"],
    )
    assert judgement.headline.endswith("while training, only in broadcast")


def test_no_collective_and_no_sample_seen(follow):
    run = follow("ddp-w2-fp32-momentum")
    for rank in (0, 1):
        run.remove(*(event for event in run.of("collective", rank) if event["phase"] == "training"))
    for event in run.of("forward", rank=1):
        event["rows"] = [None for _ in event["rows"]]
    run.expect(
        "INCONCLUSIVE", broken=["collectives while training"], has="the samples of each rank are not visible either"
    )


def test_rank_that_contributes_zeros(follow):
    run = follow("ddp-w2-fp32-momentum")
    for event in run.of("collective", rank=1):
        event["zeros"] = True
    run.expect(
        "FAIL (numerics)",
        headline="rank 1 put only zeros into every exchange of gradients",
        advice="exchange the gradients of every rank",
        broken=["gradients contributed"],
    )
    next(event for event in run.of("collective", rank=1) if event["phase"] == "training")["zeros"] = False
    assert run.judged().verdict == "PASS (exact)"


def test_rank_that_trains_on_the_samples_of_an_idle_one(follow):
    run = follow("ddp-w2-fp32-momentum")
    for mine, other in zip(run.of("forward"), run.of("forward", rank=1), strict=True):
        mine["rows"] += other["rows"]
    run.remove(*run.of("forward", rank=1))
    run.expect(
        "FAIL (numerics)",
        headline="rank 0 trained on the samples of rank 1, and rank 1 on none",
        broken=["shards differ"],
    )


def test_gradients_from_nowhere_else(follow):
    """On Ray, whose workers exchange gradients in ways that are no collectives; a scaling is no exchange."""
    run = follow("ray-w2-fp32-momentum")
    for rank, factor in enumerate([None, 0.5]):
        backward = run.of("backward_end", rank)[0]
        change = {"event": "gradient_change", "parameters": [0, 1, 2], "factor": factor, "since": backward["seq"]}
        run.after(backward, {**backward, **change})
    run.expect("FAIL (numerics)", "rank 1 never exchanged gradients", broken=["gradients from elsewhere"])


def test_same_shard_on_two_ranks(follow):
    run = follow("ddp-w3-acc2-fp32-momentum")
    for mine, other in zip(run.of("forward", rank=2), run.of("forward", rank=0), strict=True):
        mine["rows"] = other["rows"]
    run.expect(
        "FAIL (numerics)",
        headline="ranks 0 and 2 read the same samples",
        advice="give each rank its own shard",
        broken=["shards differ"],
    )


def test_one_rank_reads_the_shard_of_another_too(follow):
    run = follow("ddp-w2-fp32-momentum")
    for mine, other in zip(run.of("forward", rank=0), run.of("forward", rank=1), strict=True):
        mine["rows"] = mine["rows"] + other["rows"]
    run.expect(
        "FAIL (numerics)",
        headline="rank 0 read its own samples and those of rank 1",
        advice="give each rank its own shard",
        broken=["shards differ"],
    )


@pytest.mark.parametrize("clears", [False, True])
def test_what_goes_backward_before_a_window(follow, clears):
    """All ranks evaluate on samples of rank 0 in its first window."""
    run = follow("ddp-w2-fp32-momentum")
    rows = run.of("forward")[0]["rows"]
    for rank in (0, 1):
        first, end = run.of("forward", rank)[0], run.of("backward_end", rank)[0]
        aside = [{**first, "forward": 90, "rows": rows}, {**end, "backward": 90, "forwards": [90]}]
        run.before(first, *aside, *([dict(run.of("zero_grad", rank)[0])] if clears else []))
        run.of("backward_begin", rank)[0]["gradients"] = "none" if clears else "some"
        run.of("step", rank)[0]["gradients"][0] += 0.0 if clears else 1.0
    judgement = run.judged()
    assert broken(judgement) == ([] if clears else ["gradients of no window"])
    if not clears:
        assert judgement.headline.startswith("in window 0, rank 0 adds its gradients to those of a backward (train.py:")


@pytest.mark.parametrize(
    ("windows", "when"), [({5}, "in window 5"), ({1, 3, 5}, "in windows 1, 3, 5"), ({0, 3}, "in windows 0, 3")]
)
def test_ranks_that_do_the_same_work_in_some_windows(follow, windows, when):
    run = follow("ddp-w2-fp32-momentum")
    for mine, other in zip(run.of("forward", rank=0), run.of("forward", rank=1), strict=True):
        if mine["window"] in windows:
            mine["rows"] = other["rows"] = mine["rows"] + other["rows"]
    run.expect(
        "FAIL (numerics)",
        headline=f"ranks 0 and 1 read the same samples {when}",
        advice="give each rank its own shard",
        broken=["shards differ"],
    )


@pytest.mark.parametrize("window", [0, 2, 5])
def test_rank_that_is_idle_in_one_window(follow, window):
    run = follow("ddp-w2-fp32-momentum")
    mine, other = (run.of("forward", rank)[window] for rank in (0, 1))
    mine["rows"] += other["rows"]
    run.remove(other)
    run.expect(
        "FAIL (numerics)",
        headline=f"rank 0 trained on the samples of rank 1, and rank 1 on none in window {window}",
        advice="let each rank compute the gradients of its own shard",
        broken=["shards differ"],
    )


def test_ranks_may_repeat_samples_in_a_last_window_that_lacks_some(follow):
    run = follow("ddp-w2-acc2-fp32-uneven-batch")
    last = [[event for event in run.of("forward", rank) if event["window"] == 5] for rank in (0, 1)]
    for mine, other in zip(*last, strict=True):
        mine["rows"] = mine["rows"] + other["rows"][:1]
    assert "shards differ" not in broken(run.judged())


@pytest.mark.parametrize("rows", [[None], []])
def test_rows_that_cannot_be_told_are_not_the_same(follow, rows):
    run = follow("ddp-w2-fp32-momentum")
    for rank in range(2):
        for forward in run.of("forward", rank):
            forward["rows"] = rows * len(forward["rows"])
    assert run.judged().verdict == "PASS (exact)"


def test_shards_that_are_planned_alike_may_be_alike(follow):
    # The exercise's two workers have the same x and other targets.
    assert follow("ddp-w2-fp64-two-workers").judged().verdict.startswith("PASS")


@pytest.mark.parametrize("name", ["single-batched-fp32-momentum", "ddp-w2-fp16-momentum"])
def test_missing_step(follow, name):
    run = follow(name)
    run.remove(*run.everywhere("step", 5))
    for event, last in zip(run.everywhere("finished", 0), run.everywhere("step", 4), strict=True):
        event["weights"] = last["weights"]
    run.expect(
        "FAIL (numerics)",
        headline="5 optimizer steps instead of 6, one per accumulation window",
        broken=["optimizer steps tried"],
    )


def test_extra_step(follow):
    run = follow("ddp-w2-fp32-momentum")
    for last in run.everywhere("step", 5):
        run.after(last, dict(last))
    run.expect("FAIL (numerics)", "7 optimizer steps instead of 6", broken=["optimizer steps tried"])


def test_extra_step_on_one_rank(follow):
    run = follow("ddp-w2-fp32-momentum")
    last = run.of("step", rank=1)[-1]
    run.after(last, dict(last))
    run.expect("FAIL (numerics)", "6 or 7 optimizer steps instead of 6", broken=["optimizer steps tried"])


def test_short_window_that_only_one_rank_drops(follow):
    run = follow("ddp-w2-acc2-fp32-short-window")
    run.remove(run.of("step", rank=1)[-1])
    run.of("finished", rank=1)[0]["weights"] = run.of("step", rank=1)[-1]["weights"]
    run.expect("FAIL (numerics)", "5 or 6 optimizer steps", broken=["optimizer steps tried"])


def test_never_stepped(follow):
    run = follow("ddp-w2-fp32-momentum")
    run.remove(*run.of("step", rank=1))
    judgement = run.expect("FAIL (numerics)")
    assert broken(judgement)[0] == "optimizer steps seen"
    assert judgement.headline == "rank 1 never stepped the task's model"
    assert judgement.reason.advice == "call `optimizer.step()` on the model's parameters"


def test_stepped_another_model(follow):
    run = follow("single-batched-fp32-momentum")
    run.remove(*run.of("step"))
    run.of("finished")[0]["weights"] = run.of("start")[0]["weights"]
    run.end(0, "foreign_optimizer", optimizer="SGD", shapes=[[4, 3], [4]])
    judgement = run.judged()
    assert judgement.headline == "rank 0 stepped parameters of shape [[4, 3], [4]], which are not the task's model"
    told = "train the module that `task.model()` returns, or report its weights with `task.report`"
    assert judgement.reason.advice == told


def test_never_moved(follow):
    run = follow("ddp-w2-fp32-momentum")
    start = [float(value) for value in run.case.problem.workload.start]
    for event in (*run.of("step", rank=1), *run.of("finished", rank=1)):
        event["weights"] = start
    judgement = run.judged()
    assert broken(judgement) == ["weights moved"]
    assert judgement.headline == "the weights of rank 1 never changed"
    assert "the ranks have different weights after window 0" in judgement.notes


def test_weights_changed_after_the_last_step(follow):
    run = follow("ddp-w2-fp32-momentum")
    run.of("finished", rank=1)[0]["weights"][0] += 1
    run.expect(
        "DIVERGED",
        headline="the weights changed outside the optimizer's steps: rank 1, after the step of window 5",
        broken=["weights change in steps only"],
    )


def test_forwards_that_lag_behind_the_steps(follow):
    run = follow("single-acc2-fp32-momentum")
    show_weights(run)
    held = [event["weights"] for event in (*run.of("start"), *run.of("step"))]
    for event in run.of("forward"):
        if event["window"] in (1, 3) and event["weights"]:
            event["weights"] = list(held[event["window"] - 1])
    judgement = run.judged()
    assert judgement.headline == (
        "the weights changed outside the optimizer's steps: "
        "rank 0, after the step of window 0, back to those from before it; "
        "rank 0, after the step of window 2, back to those from before it"
    )


def show_weights(run):
    """Have the first forward of each window show the weights that it uses."""
    for rank in range(len(run.ranks)):
        held = [event["weights"] for event in (*run.of("start", rank), *run.of("step", rank))]
        for event in run.of("forward", rank):
            event["weights"] = list(held[event["window"]]) if event["micro_batch"] == 0 else None


def test_weights_changed_within_a_window(follow):
    """As by an optimizer of the trainer's own that also applies momentum and decay in each micro-batch."""
    run = follow("single-acc2-fp32-momentum")
    show_weights(run)
    assert run.judged().verdict == "PASS (exact)"
    inside = next(event for event in run.of("forward") if (event["window"], event["micro_batch"]) == (2, 1))
    inside["weights"] = [value + 1 for value in run.of("step")[1]["weights"]]
    assert run.judged().verdict == "PASS (exact)", "correct numbers pass"
    run.of("step")[2]["weights"][0] += 1
    next(event for event in run.of("forward") if event["window"] == 3)["weights"][0] += 1
    judgement = run.expect("FAIL (numerics)", broken=["weights change in steps only"])
    text = "the weights changed outside the optimizer's steps: rank 0, window 2, before micro-batch 1"
    assert judgement.headline == text


@pytest.mark.parametrize("name", ["ddp-w2-acc2-fp32-momentum", "single-batched-fp32-clip-value"])
def test_steps_of_no_optimizer_are_seen_by_the_weights(follow, name):
    run = follow(name)
    show_weights(run)
    for rank in range(len(run.ranks)):
        run.remove(*run.of("step", rank))
    assert run.judged().verdict == "PASS (exact)"
    for rank in range(len(run.ranks)):
        next(event for event in run.of("forward", rank) if event["window"] == 2)["weights"][0] += 1
    judgement = run.judged()
    assert (judgement.verdict, judgement.difference.step) == ("FAIL (numerics)", 1)


def test_weights_that_another_rank_brings_after_the_step_count(follow):
    """As where each rank steps its share of the parameters, and the ranks exchange them then."""
    run = follow("ddp-w2-fp32-momentum")
    show_weights(run)
    for rank in range(2):
        before = run.of("start", rank)[0]["weights"]
        for step in run.of("step", rank):
            own, before = slice(2) if rank == 0 else slice(2, None), step["weights"]
            seen = list(before)
            seen[own] = [value + 7 for value in seen[own]]
            step["weights"] = seen
    run.expect("PASS (exact)", broken=[])


def test_weights_changed_in_a_skipped_window(follow):
    run = follow("ddp-w2-fp16-overflow")
    for event in run.everywhere("skip", 0):
        event["weights"][0] += 1
    run.expect(
        "FAIL (numerics)",
        broken=["weights change in steps only"],
        has="rank 0, skipped window 2; rank 1, skipped window 2",
    )


def test_not_a_number_is_not_said_to_change_outside_a_step(follow):
    run = follow("single-batched-fp32-momentum")
    for event in (run.of("step")[-1], run.of("finished")[0]):
        event["weights"] = ["nan"] * 3
    judgement = run.judged()
    assert broken(judgement) == []
    assert "becomes nan" in judgement.headline


def test_a_broken_guard_goes_before_wrong_numbers_and_keeps_their_suspects(follow):
    run = follow("ddp-w2-fp32-momentum", NotSynchronised)
    for event in run.everywhere("topology", 0):
        event["world_size"] = 1
    judgement = run.judged()
    assert judgement.headline.startswith("the trainer has world size 1")
    assert any(note.startswith("step 0, rank 0: the gradient of") for note in judgement.notes)
    assert "not-synchronised" in judgement.suspects.explained_by


@pytest.mark.parametrize(("wrong", "is_told"), [(["encoder.weight"], True), (["encoder.weight", "skip.weight"], False)])
def test_several_places_are_told_of_where_nothing_else_is_wrong(follow, wrong, is_told):
    run = follow("ddp-w2-acc2-fp32-many-tensors")
    model = run.case.problem.workload.model
    for event in run.everywhere("step", 2):
        for at, tensor in enumerate(model.tensor_of):
            event["weights"][at] += model.tensors[tensor].name in wrong
    headline = run.judged().headline
    assert headline.startswith(f"{' and '.join(wrong)} ") and " wrong after window 2; all other " in headline
    assert ("in several places" in headline) == is_told


BACKWARD = {"event": "backward_end"}


def step(window, gradients):
    return {"event": "step", "window": window, "gradients": gradients}


FOUND = [BACKWARD, step(0, [1.0, None]), BACKWARD, step(1, [0.0, 2.0])]
IDLE = [BACKWARD, step(1, [None, None])]


@pytest.mark.parametrize(
    ("events", "window"),
    [
        ([*FOUND, *IDLE], 1),
        (FOUND, None),
        # Without a backward there are no gradients, such as for a second optimizer of frozen parameters.
        ([*FOUND, IDLE[1]], None),
        ([*FOUND, *IDLE, BACKWARD, step(2, [1.0, 1.0])], None),
        # Gradients that could not be read are not missing.
        ([*FOUND, BACKWARD, step(2, None)], None),
        (IDLE, None),
    ],
)
def test_the_last_step_that_found_gradients(events, window):
    assert idle_after(SimpleNamespace(events=Events(tuple(map(read, events))))) == window


@pytest.mark.parametrize("name", ["single-acc2-fp32-frozen", "single-acc2-fp32-unused"])
def test_steps_beyond_the_last_window_of_a_model_of_which_some_parameters_have_no_gradient(follow, name):
    run = follow(name)
    *_, last = run.of("step")
    run.after(last, copy.deepcopy(last))
    judgement = run.expect("FAIL (numerics)")
    assert "7 optimizer steps instead of 6" in " ".join([judgement.headline, *judgement.notes])


def test_a_wrong_rate_is_blamed_on_the_line_that_set_it(follow):
    run = follow("ddp-w2-acc2-fp32-momentum")
    step, scheduled = run.of("step")[3], run.of("schedule")[2]
    step["lr"], step["where"], scheduled["where"] = float(step["lr"]) * 2, ("train.py", 30), ("train.py", 31)
    step["weights"][0] += 1
    judged = run.judged()
    assert "has the learning rate" in judged.headline
    assert judged.reason.where == "train.py:31"
