"""A run that is stopped loses nothing that was finished, and leaves no process behind."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

FIRST, SECOND, BLOCKED, NEVER = (f"single-{path}-fp32-momentum" for path in ("batched", "acc2", "acc3", "acc4"))
CHOSEN = [word for case in (FIRST, SECOND, BLOCKED, NEVER) for word in ("--case", case)]


@pytest.fixture
def blocked(write, gate, command):
    """A run whose first two cases are finished, and whose third is in the middle of training."""

    def start(processes: str = "1"):
        target = write(f"if task.accumulation == 3: open({str(gate)!r}).read()", name="waits.py")
        run = command("run", target, *CHOSEN, "-n", processes)
        # Opening it waits for the trainer to do the same.
        return run, os.open(gate, os.O_WRONLY)

    return start


def lines():
    return [json.loads(line) for line in Path("conformance-results.jsonl").read_text().splitlines()]


def test_killed(blocked, all_gone, conformance):
    run, gate = blocked()
    handles = run.handles()
    assert len(handles) >= 4, "the front process, the zygote, the server and its rank"
    os.kill(run.process.pid, signal.SIGKILL)
    assert run.ended().code == -signal.SIGKILL
    assert all_gone(handles)
    os.close(gate)
    assert [(line["kind"], line.get("id")) for line in lines()] == [("header", None), ("case", FIRST), ("case", SECOND)]

    ended = conformance("report", "conformance-results.jsonl", "--output", "again.html")
    assert (ended.code, ended.err) == (1, "")
    assert "INCOMPLETE: the run was cut off: 2 of 4 cases" in ended.out
    assert "Not shown to conform" in ended.out
    assert "2 of 4 cases" in Path("again.html").read_text()


@pytest.mark.parametrize("processes", ["1", "2"])
def test_interrupted(blocked, all_gone, conformance, processes):
    run, gate = blocked(processes)
    handles = run.handles()
    # As a terminal does on Ctrl-C.
    os.killpg(run.process.pid, signal.SIGINT)
    ended = run.ended()
    assert all_gone(handles)
    os.close(gate)
    assert ended.code == 130
    header, *cases, footer = lines()
    assert (header["kind"], footer["kind"], footer["complete"]) == ("header", "footer", False)
    assert footer["cases"] == len(cases) < 4
    assert BLOCKED not in [case["id"] for case in cases]
    assert ended.line == (f"conformance: interrupted; {len(cases)} of 4 cases are in conformance-results.jsonl")
    if processes == "1":
        assert [case["id"] for case in cases] == [FIRST, SECOND]
        assert "INCOMPLETE: the run was cut off: 2 of 4 cases" in ended.out
    assert conformance("report", "conformance-results.jsonl").code == 1


def test_rendered_again(conformance, write):
    target = write()
    first = conformance("run", target, "--case", FIRST)
    page = Path("conformance-report.html").read_text()
    Path("conformance-report.html").unlink()
    again = conformance("report", "conformance-results.jsonl")
    assert (again.code, again.out, again.err) == (first.code, first.out, "") == (0, first.out, "")
    assert Path("conformance-report.html").read_text() == page
