"""A judgement as a line of the results file: accepted by the writer, and the same when it is read back."""

from __future__ import annotations

import pytest

from conformance.report.signs import key_of
from conformance.results import ResultsWriter, read_results
from conformance.results.plain import plain
from conformance.results.plain import record as read
from conformance.results.result_lines import Collective, Finding, Header
from conformance.verdict.record import _called, record

from ..results import synthetic

HEADER = Header(tool="trainer-conformance", version="0", started="now", command="conformance run", planned=1)


def passes(follow):
    return follow("ddp-w2-acc2-fp16-overflow"), {}


def passes_within_the_bound(follow):
    return follow("ddp-w2-fp32-adamw"), {}


def drops_the_short_window(follow):
    return follow("single-acc2-fp32-short-window", windows=5), {}


def differs(follow):
    run = follow("single-batched-fp32-momentum")
    run.of("step")[3]["weights"][0] += 1
    return run, {}


def differs_on_rank_1(follow):
    run = follow("ddp-w2-fp32-adamw")
    run.of("step", rank=1)[3]["gradients"][0] += 1
    return run, {}


def diverges(follow):
    run = follow("ddp-w2-fp32-momentum")
    run.of("step", rank=1)[3]["weights"][0] = "nan"
    return run, {}


def is_no_number(follow):
    run = follow("single-batched-fp32-momentum")
    run.of("step")[0] |= {"gradients": ["inf", "-inf", None], "weights": ["nan"] * 3}
    return run, {}


def never_steps(follow):
    run = follow("ddp-w2-fp32-momentum")
    run.remove(*run.of("step", 0), *run.of("step", 1))
    for rank in range(2):
        run.of("finished", rank)[0]["weights"] = run.of("start", rank)[0]["weights"]
    return run, {}


def crashes(follow):
    run = follow("ddp-w2-fp32-momentum")
    run.remove(*run.of("finished", 1))
    run.end(1, "raised", type="E", message="m", traceback="Traceback: \ud800 \x1b[31m")
    return run, {"rank1_finished": False, "rank1_exit": "exited 1 before it finished", "rank1_output": "\x00\u202e"}


def hangs(follow):
    ended = {"finished": False, "timed_out": True, "exit": "killed at the time limit of 3 s", "stack": "Thread 0x0"}
    return follow("ddp-w2-fp32-momentum"), ended


def aborts_afterwards(follow):
    return follow("ddp-w2-fp32-momentum"), {"rank1_exit": "aborted after it delivered: SIGABRT"}


RUNS = {
    passes: "PASS (exact)",
    passes_within_the_bound: "PASS (bounded)",
    drops_the_short_window: "PASS (exact)",
    differs: "FAIL (numerics)",
    differs_on_rank_1: "FAIL (numerics)",
    diverges: "DIVERGED",
    is_no_number: "FAIL (numerics)",
    never_steps: "FAIL (numerics)",
    crashes: "CRASH",
    hangs: "HANG",
    aborts_afterwards: "PASS (exact)",
}


def recorded(run, judgement):
    return record(run.case, "t", "t.py", f"conformance run t.py --case {run.case.id}", judgement, 0.25)


@pytest.mark.parametrize(("made", "verdict"), RUNS.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_round_trip(follow, tmp_path, made, verdict):
    run, ended = made(follow)
    judgement = run.judged(**ended)
    case = recorded(run, judgement)
    assert (case.id, case.verdict, case.headline) == (run.case.id, verdict, judgement.headline)
    assert (case.first_difference is None) == (judgement.difference is None)
    assert (case.diverged is None) == (judgement.divergence is None)
    with ResultsWriter(tmp_path / "r.jsonl", HEADER) as writer:
        writer.case(case)
    [read] = read_results(tmp_path / "r.jsonl").cases
    # As JSON values: NaN equals nothing.
    assert plain(read) == plain(case)


def test_what_a_pass_rests_on(follow):
    run, _ = passes(follow)
    case = recorded(run, run.judged())
    assert case.certificate.exact
    assert {stage.stage for stage in case.certificate.stages} >= {"forward", "backward", "all-reduce", "update"}
    assert all(stage.bits <= stage.available for stage in case.certificate.stages)
    assert case.power.value > 1
    assert (case.skips, case.scales) == ((2,), (128.0, 128.0, 128.0, 64.0, 64.0, 64.0, 128.0))
    assert [step.window for step in case.steps] == [0, 1, 3, 4, 5]
    assert all(error == 0 for step in case.steps for error in (*step.error, *step.gradient_error, *step.ulp))
    assert case.ranks[1].collectives == {"broadcast_": Collective(1, 12), "allreduce_": Collective(6, 72)}


def test_the_error_is_told_in_ulp(follow, ulp):
    run = follow("single-batched-fp32-momentum")
    event = run.of("step")[3]
    event["weights"][1] += 5 * ulp(event["weights"][1], run.case)
    assert recorded(run, run.judged()).steps[3].ulp == (0.0, 5.0, 0.0, 0.0)


def test_the_steps_shown_are_those_of_the_rank_that_differs(follow):
    run, _ = differs_on_rank_1(follow)
    case = recorded(run, run.judged())
    assert case.first_difference.step == 3
    wrong, *others = case.steps[3].gradient_error
    assert wrong > 0.5 > max(others)


@pytest.mark.parametrize(
    ("function", "calls", "where"),
    [
        ("reset", 1, "train.py:2, called from train.py:5"),
        ("Loop.reset", 1, "train.py:2, called from train.py:5"),
        ("reset", 2, "train.py:2"),
        # The steps are in it too.
        ("train", 1, "train.py:2"),
        ("<lambda>", 1, "train.py:2"),
    ],
)
def test_a_helper_of_the_loop_is_shown_with_its_only_call(follow, tmp_path, function, calls, where):
    (tmp_path / "train.py").write_text("def reset():\n    clear()\n\ndef train():\n" + "    reset()\n" * calls)
    run = follow("single-acc2-fp32-momentum")
    run.of("zero_grad")[0]["where"] = ["train.py", 2, function]
    [judged] = run.judged().runs
    event = next(event for event in judged.ranks[0].events if event.event == "zero_grad")
    found = _called(event, [event], [judged], f"{tmp_path / 'train.py'}:train")
    assert found.where == where
    assert len(found.source) == len(where.split(", called from "))


def test_a_helper_with_another_line_that_the_law_shows_has_the_bug_itself(follow, tmp_path):
    """Its call would be wrong only if the lines were in different functions."""
    (tmp_path / "train.py").write_text("def finish():\n    unscale()\n    reduce()\n\ndef train():\n    finish()\n")
    run = follow("single-acc2-fp32-momentum")
    for number, line in enumerate((2, 3)):
        run.of("zero_grad")[number]["where"] = ["train.py", line, "finish"]
    [judged] = run.judged().runs
    one, other = [event for event in judged.ranks[0].events if event.event == "zero_grad"][:2]
    target = f"{tmp_path / 'train.py'}:train"
    assert _called(one, [one, other], [judged], target).where == "train.py:2"
    assert _called(one, [one, one], [judged], target).where == "train.py:2, called from train.py:6"


def test_two_lines_of_a_helper_are_one_problem(follow, tmp_path):
    """The branches of a helper show a bug of the loop, which calls it once."""
    (tmp_path / "train.py").write_text("def clip():\n    by_norm()\n    by_value()\n\ndef train():\n    clip()\n")
    run = follow("single-acc2-fp32-momentum")
    found = set()
    for line in (2, 3):
        run.of("zero_grad")[0]["where"] = ["train.py", line, "clip"]
        [judged] = run.judged().runs
        event = next(event for event in judged.ranks[0].events if event.event == "zero_grad")
        where = _called(event, [event], [judged], f"{tmp_path / 'train.py'}:train").where
        found.add(key_of(read(Finding, {**synthetic.finding("MUST"), "where": where})))
    assert {key.partition("@")[2] for key in found} == {"train.py:6"}


def test_of_a_long_run_the_first_wrong_step_is_kept(follow):
    run = follow("single-batched-fp64-multivariate")
    steps = run.of("step")
    assert len(steps) == 400
    kept = [step.step for step in recorded(run, run.judged()).steps]
    wrong = next(number for number in range(100, 400) if number not in kept)
    steps[wrong]["weights"][0] += 1
    case = recorded(run, run.judged())
    assert case.first_difference.step == wrong
    assert wrong in [step.step for step in case.steps]
    assert {0, 399} <= set(kept)
    assert len(kept) < 100
