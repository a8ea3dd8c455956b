"""``conformance run --traces`` writes the traces of ranks, and ``conformance trace`` shows them."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.trace import file

CASE = "ddp-w2-acc2-fp32-momentum"
SUITE = ("--pyargs", "conformance.suite", "-p", "no:cacheprovider")


@pytest.fixture
def traced(conformance, write):
    """The folder with the trace of a case."""
    ended = conformance("run", write(name="mine.py"), "--case", CASE, "--traces", "traces")
    assert ended.code == 0, ended.err
    return Path("traces", "mine", CASE)


def test_from_the_run_to_the_terminal(traced, conformance, write):
    """Also errors in a call: one line, exit code 2, and nothing is run or written."""
    plan, ranks = file.read(traced)
    assert (plan["case"], len(ranks)) == (CASE, 2)
    assert [events[-1]["event"] for events in ranks] == ["finished"] * 2
    places = [event["where"] for event in ranks[0] if event["event"] == "backward_begin"]
    assert {(name, function) for name, _, function in places} == {("mine.py", "train")}
    ended = conformance("trace", str(traced))
    assert ended.code == 0
    heading, *lines = ended.out.splitlines()
    assert heading.split() == ["ms", "rank", "seq", "window", "batch", "event", "called", "at"]
    assert sum("enter no_sync" in line and "mine.py:" in line for line in lines) > 2
    assert {line.split()[1] for line in lines if "backward done" in line} == {"0", "1"}
    Path("plain").write_text("no folder")
    for arguments, said in (
        (("run", write(), "--traces", "plain"), "cannot write traces to plain: plain is not a folder; name another"),
        (("trace", "nosuch"), "nosuch: no such folder"),
        (("trace", "traces"), f"name the folder of one case, such as traces/mine/{CASE}"),
    ):
        ended = conformance(*arguments)
        assert ended.code == 2
        assert said in ended.line


def test_a_crash_has_its_trace_too(conformance, write):
    target = write("", "raise ValueError('half')", name="mine.py")
    assert conformance("run", target, "--case", CASE, "--traces", "traces").code == 1
    ended = conformance("trace", f"traces/mine/{CASE}")
    assert ended.code == 0
    assert "raised" in ended.out
    _, ranks = file.read(Path("traces", "mine", CASE))
    assert [events[-1]["event"] == "finished" for events in ranks] == [False, False]


def test_pytest_writes_them_too(pytester, write):
    target = Path(write(name="mine.py")).resolve()
    chosen = ("--case", CASE, "--case", "single-acc2-fp32-momentum")
    result = pytester.runpytest_subprocess(*SUITE, "-n", "2", "--trainer", target, *chosen, "--traces", "here")
    result.assert_outcomes(passed=2)
    assert len(list(Path("here").glob("mine/*/rank*.jsonl"))) == 3


def test_damaged_files(conformance, traced):
    """Each damage gives one line."""
    file = Path(traced, "rank0.jsonl")
    whole = file.read_text()
    for before, after, said in (
        ('"world_size": 2', '"world_size": "2"', "cannot be shown: it is damaged (TypeError: "),
        ('"plan": ', '"plane": ', "cannot be shown: it is damaged (KeyError: 'plan')"),
        ("{", "[" * 100_000, "cannot be shown: it is damaged (RecursionError: "),
    ):
        file.write_text(whole.replace(before, after, 1))
        ended = conformance("trace", str(traced))
        assert (ended.code, ended.out) == (2, "")
        assert said in ended.line
