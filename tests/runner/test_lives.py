"""A resumed case runs twice, and leaves no folder behind."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from conformance.runner.front.client import run_case
from conformance.runner.outcome import Outcome, RankOutcome, RunnerError

SPEC = {"case": "some", "resumed_at": 3, "resumed": "once"}
TWICE = {**SPEC, "resumed": "twice"}


def outcome(*, finished=True, exit="exited 0", output="", windows=()):
    """The outcome of a rank that has started, and stepped in these windows."""
    events = [{"event": "started", "rank": 0, "seq": 0, "pid": 1, "window": None}]
    events += [{**events[0], "event": "step", "seq": seq, "window": at} for seq, at in enumerate(windows, start=1)]
    rank = RankOutcome(0, events, finished, exit, output, None)
    return Outcome((rank,), 0.5, timed_out=not finished)


class Runs:
    """Returns these outcomes, and remembers the lives that it was asked to run."""

    def __init__(self, *outcomes):
        self.outcomes = list(outcomes)
        self.lives = []

    def __call__(self, spec, time_limit):
        assert time_limit == 7.0
        self.lives.append(spec.get("life"))
        folder = spec.get("life", {}).get("checkpoint_dir")
        if folder:
            assert not list(Path(folder).iterdir())
            (Path(folder) / "checkpoint.pt").write_text("weights")
        elif spec.get("life"):
            assert (Path(spec["life"]["resume_from"]) / "checkpoint.pt").read_text() == "weights"
        return self.outcomes.pop(0)


def test_a_case_without_a_resume_runs_once():
    through = outcome()
    run = Runs(through)
    assert run_case(run, {"case": "some", "resumed_at": None}, 7.0) is through
    assert run.lives == [None]


def test_a_resumed_case_runs_up_to_the_stop_and_from_it():
    run = Runs(outcome(output="one\n", exit="aborted after it delivered: SIGABRT"), outcome(output="two\n"))
    both = run_case(run, SPEC, 7.0)
    first, second = run.lives
    folder = first["checkpoint_dir"]
    through = {"stop_after": None, "stop_inside": 0, "checkpoint_dir": None, "save_after": [], "resume_from": None}
    assert first == {**through, "stop_after": 3, "checkpoint_dir": folder, "save_after": [3]}
    assert second == {**through, "resume_from": folder}
    assert not Path(folder).exists()
    assert both.seconds == 1.0
    [rank] = both.ranks
    assert (rank.output, rank.exit) == ("one\ntwo\n", "aborted after it delivered: SIGABRT")
    assert [event["seq"] for event in rank.events] == [0, 1]


def test_a_stop_inside_a_window():
    run = Runs(outcome(), outcome())
    run_case(run, {**SPEC, "resumed": "inside-window", "resumed_inside": 1}, 7.0)
    assert [(life["stop_after"], life["stop_inside"]) for life in run.lives] == [(3, 1), (None, 0)]


FAILED = {"finished": False, "exit": "killed by SIGKILL"}


def test_a_life_that_fails_is_the_last():
    failed = outcome(**FAILED)
    assert run_case(run := Runs(failed), SPEC, 7.0) is failed
    assert len(run.lives) == 1
    both = run_case(Runs(outcome(), failed), SPEC, 7.0)
    assert both.timed_out
    assert (both.ranks[0].finished, both.ranks[0].exit) == (False, "killed by SIGKILL")
    assert not run_case(run := Runs(outcome(), failed), TWICE, 7.0).ranks[0].finished
    assert len(run.lives) == 2


def test_a_case_is_resumed_twice_from_one_checkpoint():
    run = Runs(outcome(output="one\n"), outcome(output="two\n"), outcome(output="three\n"))
    both = run_case(run, TWICE, 7.0)
    assert [life["resume_from"] is None for life in run.lives] == [True, False, False]
    assert (both.ranks[0].output, both.seconds, both.altered) == ("one\nthree\n", 1.5, ())
    assert both.earlier.ranks[0].output == "one\ntwo\n"


def test_changes_of_the_checkpoint_by_the_first_resume():
    def alter(spec, time_limit):
        found = run(spec, time_limit)
        if len(run.lives) == 2:
            (Path(spec["life"]["resume_from"]) / "more.pt").write_text("new")
            (Path(spec["life"]["resume_from"]) / "other.pt").unlink()
        elif len(run.lives) == 1:
            (Path(spec["life"]["checkpoint_dir"]) / "other.pt").write_text("old")
        return found

    run = Runs(outcome(), outcome(), outcome())
    assert run_case(alter, TWICE, 7.0).altered == ("other.pt",)


@pytest.mark.parametrize("exit", ["killed by SIGXFSZ", "killed by SIGKILL", "exited 0"])
def test_a_case_is_resumed_only_if_it_was_killed_as_planned(exit):
    killed = outcome(finished=exit == "exited 0", exit=exit, windows=(2, 3))
    run = Runs(killed, outcome())
    found = run_case(run, {**SPEC, "resumed": "killed"}, 7.0)
    assert (run.lives[0]["stop_after"], run.lives[0]["save_after"]) == (None, [3, 6])
    if exit == "killed by SIGXFSZ":
        assert [event["event"] for event in found.ranks[0].events] == ["started", "step", "started"]
        assert (found.ranks[0].finished, found.ranks[0].exit) == (True, "exited 0")
    else:
        assert found is killed


@pytest.mark.parametrize(("resumed", "kept"), [([3], [2]), ([4], [2, 3]), ([5], [2]), ([], [2])])
def test_after_a_kill_between_files_it_may_resume_from_either_checkpoint(resumed, kept):
    killed = outcome(finished=False, exit="killed by SIGXFSZ", windows=(2, 3))
    run = Runs(killed, outcome(windows=resumed))
    found = run_case(run, {**SPEC, "resumed": "killed-between-files"}, 7.0)
    assert (run.lives[0]["stop_after"], run.lives[0]["save_after"]) == (None, [3, 4])
    assert [event["window"] for event in found.ranks[0].events] == [None, *kept, None, *resumed]


def test_no_folder_for_checkpoints(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with pytest.raises(RunnerError, match="cannot make a folder for checkpoints: No such file"):
        run_case(Runs(), SPEC, 7.0)
