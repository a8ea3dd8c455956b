"""Reported weights replace unseen ones, and are compared with seen ones."""

from __future__ import annotations

import pytest

CASE = "ddp-w2-acc2-fp32-momentum"


def hide(run):
    """Leave neither steps nor forwards of the model, whose own weights stay as they are."""
    for rank, events in enumerate(run.ranks):
        start = run.of("start", rank)[0]["weights"]
        run.of("finished", rank)[0]["weights"] = start
        events[:] = [event for event in events if event["event"] not in ("step", "skip", "forward", "optimizer")]


def report(run, ranks=(0, 1), gradients=False):
    """Have the ranks report what their steps leave, and what they use."""
    for rank in ranks:
        for step in run.of("step", rank):
            told = {"event": "report", "step": step["window"], "weights": list(step["weights"])}
            if gradients:
                told["gradients"] = list(step["gradients"])
            run.after(
                step,
                {**{name: step[name] for name in ("rank", "seq", "time", "window", "micro_batch", "where")}, **told},
            )


def test_what_is_not_seen_is_judged_as_reported(follow):
    run = follow(CASE)
    report(run)
    hide(run)
    judgement = run.judged()
    assert (judgement.verdict, judgement.findings) == ("PASS (exact)", ())
    assert judgement.headline == "6 steps, reported weights bit-identical to the oracle on every rank"
    assert "weights=reported" in [one.way for one in judgement.behaviour]


def test_wrong_weights_that_are_reported(follow):
    run = follow(CASE)
    report(run)
    hide(run)
    for event in run.everywhere("report", 3):
        event["weights"][1] += 1
    judgement = run.expect("FAIL (numerics)", "step 3, rank 0: weight[1] becomes ")
    assert any("as reported with `task.report`" in note for note in judgement.notes)


def test_gradients_that_are_reported_are_compared(follow):
    run = follow(CASE)
    report(run, gradients=True)
    hide(run)
    judgement = run.judged()
    assert judgement.headline == "6 steps, reported weights and gradients bit-identical to the oracle on every rank"
    for event in run.everywhere("report", 3):
        event["gradients"][1] += 1
        event["weights"][1] -= 0.5
    run.expect("FAIL (numerics)", "step 3, rank 0: the gradient of weight[1] is ")


def test_gradients_that_the_step_did_not_use(follow):
    """Correct weights show that they were read elsewhere."""
    run = follow(CASE)
    report(run, gradients=True)
    hide(run)
    for event in run.everywhere("report", 3):
        event["gradients"][1] += 1
    judgement = run.judged()
    assert judgement.headline == "6 steps, reported weights bit-identical to the oracle on every rank"
    assert any(note.startswith("only weights were compared") for note in judgement.notes)


@pytest.mark.parametrize("name", ["ddp-w2-acc2-fp32-clip-value", "ddp-w2-acc2-fp16-momentum"])
def test_gradients_that_a_step_may_still_change_are_not_compared(follow, name):
    run = follow(name)
    report(run, gradients=True)
    hide(run)
    for rank in range(2):
        for event in run.of("report", rank):
            event["gradients"] = [1024 * one for one in event["gradients"]]
    assert run.judged().headline == "6 steps, reported weights bit-identical to the oracle on every rank"


def test_reports_of_ranks_that_differ(follow):
    run = follow(CASE)
    report(run)
    hide(run)
    run.of("report", rank=1)[3]["weights"][1] += 1
    assert run.judged().verdict == "DIVERGED"


def test_parts_that_are_reported(follow):
    run = follow(CASE)
    report(run)
    hide(run)
    for rank in range(2):
        for event in run.of("report", rank):
            event["weights"] = [one if at % 2 == rank else None for at, one in enumerate(event["weights"])]
    assert run.judged().verdict == "PASS (exact)"


@pytest.mark.parametrize("window", [0, 5])
def test_a_window_that_is_not_reported(follow, window):
    run = follow(CASE)
    report(run)
    hide(run)
    run.remove(*run.everywhere("report", window))
    run.expect("INCONCLUSIVE", f"rank 0 does not report all of its weights after window {window}, ")


def test_a_parameter_that_no_rank_reports(follow):
    """The last one is the bias."""
    run = follow(CASE)
    report(run)
    hide(run)
    for event in [*run.of("report", 0), *run.of("report", 1), *run.everywhere("finished", 0)]:
        event["weights"][-1] = None
    run.expect("INCONCLUSIVE", "rank 0 does not report all of its weights after window 0, ")


def test_a_rank_that_reports_nothing(follow):
    run = follow(CASE)
    report(run, ranks=(0,))
    hide(run)
    run.expect("INCONCLUSIVE", "rank 1 does not report ")


def test_a_report_against_what_is_seen(follow):
    """The numbers are correct, but the report is wrong."""
    run = follow(CASE)
    report(run)
    run.of("report", rank=1)[3]["weights"][1] += 1
    judgement = run.judged()
    assert (judgement.verdict, judgement.mistake.kind) == ("SETUP", "report")
    assert judgement.headline.startswith("rank 1 reports ")
    assert " for weight[1] after window 3, but it is " in judgement.headline


@pytest.mark.parametrize("differ", [False, True])
def test_reports_from_before_the_step_where_the_last_weights_are_not_seen(follow, differ):
    """Such as with weights that are gathered only for forwards. The reports are wrong, whether equal or not."""
    run = follow(CASE)
    report(run)
    for rank in range(2):
        before = run.of("start", rank)[0]["weights"]
        steps = run.of("step", rank)
        for told, step in zip(run.of("report", rank), steps, strict=True):
            told["weights"], before = list(before), step["weights"]
        for forward in run.of("forward", rank):
            if forward["window"] and forward["micro_batch"] == 0:
                forward["weights"] = steps[forward["window"] - 1]["weights"]
        run.remove(*steps)
        run.of("finished", rank)[0]["weights"] = [None] * 4
    if differ:
        run.of("report", rank=1)[5]["weights"][0] += 1
    judgement = run.judged()
    assert (judgement.verdict, judgement.findings) == ("SETUP", ())
    assert " after window 0, but it is " in judgement.headline


def test_wrong_weights_with_right_ones_reported(follow):
    """What is seen is judged, and the report changes nothing."""
    run = follow(CASE)
    report(run)
    for event in run.everywhere("step", 5):
        event["weights"][1] += 1
    run.of("finished")[0]["weights"][1] += 1
    run.of("finished", rank=1)[0]["weights"][1] += 1
    judgement = run.expect("FAIL (numerics)", "step 5, rank 0: weight[1] becomes ")
    assert any(note.startswith("rank 0 reports ") for note in judgement.notes)


def test_masters_of_what_is_seen_rounded(follow):
    """Forwards show the reported weights in 16 bits: if both round to the same number, the reported one is judged."""
    for wrong, verdict in ((0.0, "PASS (exact)"), (2.0**-12, "FAIL (numerics)")):
        run = follow("ddp-w2-acc2-bf16-momentum")
        report(run)
        for rank in range(2):
            for event in run.of("report", rank):
                event["weights"][1] += wrong * event["weights"][1]
            steps = run.of("step", rank)
            for forward in run.of("forward", rank):
                if forward["window"] and forward["micro_batch"] == 0:
                    forward |= {"weights": steps[forward["window"] - 1]["weights"], "rounded": True}
            run.remove(*steps)
        assert run.judged().verdict == verdict


def hold_elsewhere(run):
    """Forwards use other weights than the model's own parameters, which stay as they are; no optimizer is seen."""
    for rank, events in enumerate(run.ranks):
        steps = run.of("step", rank)
        run.of("finished", rank)[0]["weights"] = run.of("start", rank)[0]["weights"]
        for forward in run.of("forward", rank):
            if forward["window"] and forward["micro_batch"] == 0:
                forward["weights"] = steps[forward["window"] - 1]["weights"]
        events[:] = [event for event in events if event["event"] not in ("step", "skip", "optimizer")]


def test_the_end_shows_nothing_of_weights_that_are_elsewhere(follow):
    run = follow(CASE)
    report(run)
    hold_elsewhere(run)
    assert run.judged().verdict == "PASS (exact)"
    run.of("report", rank=0)[5]["weights"][1] += 1
    run.of("report", rank=1)[5]["weights"][1] += 1
    assert run.judged().verdict == "FAIL (numerics)"


def test_reports_from_before_the_step_of_windows_that_may_be_skipped(follow):
    """The last window seems to be skipped, and forwards show correct weights in the others."""
    run = follow("single-acc2-fp16-momentum")
    report(run, ranks=(0,))
    before = run.of("start")[0]["weights"]
    steps = run.of("step")
    hold_elsewhere(run)
    for told, step in zip(run.of("report"), steps, strict=True):
        told["weights"], before = list(before), step["weights"]
    run.remove(*run.of("scaler_step"), *run.of("update"), *run.of("unscale"))
    judgement = run.judged()
    assert (judgement.verdict, judgement.mistake and judgement.mistake.kind) == ("SETUP", "report")


def test_no_report_changes_nothing(follow):
    run = follow(CASE)
    assert not any(rank.reported or rank.denied for rank in run.judged().ranks)
