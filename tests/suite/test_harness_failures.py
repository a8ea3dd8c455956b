"""Failures of the harness or the machine: exit code 3 and one line."""

from __future__ import annotations

import html
import os
import resource
from importlib import import_module
from pathlib import Path

import pytest

from conformance.laws import checking
from conformance.laws.law import Law
from conformance.laws.subjects import Window

CASE = "single-batched-fp32-momentum"
OTHER = "single-acc2-fp32-momentum"
AFTER = "single-acc3-fp32-momentum"

HURTS_AN_OBSERVER = """
from conformance.trace.observers import forward

def broken(*arguments):
    raise LookupError("a bug of ours")

if task.accumulation > 1:
    forward._note = broken
"""


REMOVES_THE_FOLDER = """
import shutil
from conformance import trainer

shutil.rmtree("out")

@trainer
def train(task): ...
"""

KILLS_THE_RENDEZVOUS = """
if task.world_size > 1:
    children = open(f"/proc/{os.getppid()}/task/{os.getppid()}/children").read().split()
    if task.rank == 0:
        os.kill(min(map(int, children)), 9)
    time.sleep(60)
"""


@pytest.mark.parametrize("processes", ["1", "2"])
def test_torch_cannot_be_imported(command, folder, processes):
    Path("broken/torch").mkdir(parents=True)
    Path("broken/torch/__init__.py").write_text("raise ImportError('libtorch.so: cannot open it')\n")
    path = os.pathsep.join(["broken", os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    ended = command("run", "single", "--case", CASE, "-n", processes, env={"PYTHONPATH": path}).ended()
    assert (ended.code, ended.out) == (3, "")
    assert ended.line == (
        "conformance: the harness failed: the process that imports torch exited 1; "
        "it last printed: ImportError: libtorch.so: cannot open it"
    )
    assert not Path("conformance-results.jsonl").exists()


def test_the_disk_is_full(command, folder):
    """Simulated by a limit on the size of files: not even the header fits."""
    Path("conformance-results.jsonl").write_text("earlier results\n")

    def no_room():
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

    ended = command("run", "batched", "--case", CASE, "-n", "1", preexec_fn=no_room).ended()
    assert (ended.code, ended.out) == (3, "")
    assert ended.line.startswith("conformance: the harness failed: cannot write conformance-unfinished-")
    assert ended.line.endswith(".jsonl: File too large")
    assert Path("conformance-results.jsonl").read_text() == "earlier results\n"
    assert list(Path().glob("conformance-unfinished-*")) == []


def test_the_disk_becomes_full(command, folder):
    """Reported once, although the footer cannot be written either."""

    def little_room():
        resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000))

    ended = command("run", "batched", "--backend", "single", "-n", "1", preexec_fn=little_room).ended()
    assert ended.code == 3
    assert ended.line.endswith(".jsonl: File too large")
    assert "INCOMPLETE: the run was cut off: " in ended.out


def test_the_disk_becomes_full_with_the_report(conformance, write, cases, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("conformance.report.html.render_html", full)
    ended = conformance("run", write(), "--case", CASE)
    assert ended.code == 3
    assert ended.line.endswith("No space left on device; the results are in conformance-results.jsonl")
    assert [case["verdict"] for case in cases().values()] == ["PASS (exact)"]


def test_the_folder_is_removed_before_there_are_results(conformance, folder):
    Path("mine.py").write_text(REMOVES_THE_FOLDER)
    ended = conformance("run", "mine.py", "--case", CASE, "--output", "out")
    assert ended.code == 3
    assert "cannot write out/conformance-unfinished-" in ended.line
    assert ended.line.endswith(".jsonl: No such file or directory")


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_process_of_ours_is_killed_in_a_case(conformance, write, cases, processes):
    """The case loses its verdict; one line says which case and why."""
    target = write(KILLS_THE_RENDEZVOUS)
    ended = conformance("run", target, "--case", "ddp-w2-fp32-momentum", "--case", CASE, "-n", processes)
    assert ended.code == 3
    assert ended.line == (
        "conformance: the harness failed: ddp-w2-fp32-momentum: the process that hosts the rendezvous ended early: "
        "killed by SIGKILL"
    )
    assert [case["verdict"] for case in cases().values()] == ["PASS (exact)"]


@pytest.mark.parametrize("where", ["suite.one_item.judge", "suite.one_item.record", "runner.outcome.placed"])
def test_a_bug_of_ours_in_one_case(conformance, write, cases, monkeypatch, where):
    """This case is not judged, and shows the traceback; the other case is unaffected."""
    module, _, name = f"conformance.{where}".rpartition(".")
    working = getattr(import_module(module), name)

    def broken(case, *arguments):
        if (case["accumulation"] if isinstance(case, dict) else case.accumulation) > 1:
            raise ZeroDivisionError("a bug\nof ours")
        return working(case, *arguments)

    target = write()
    monkeypatch.setattr(f"conformance.{where}", broken)
    ended = conformance("run", target, "--case", CASE, "--case", OTHER)
    assert (ended.code, ended.err) == (1, "")
    found = {id: case["verdict"] for (_, id), case in cases().items()}
    assert found == {CASE: "PASS (exact)", OTHER: "INCONCLUSIVE"}
    said = "The harness failed, so the trainer cannot be judged: ZeroDivisionError: a bug of ours; this is a bug in"
    assert said in " ".join(ended.out.split())
    assert "CONFORMS" not in ended.out
    page = html.unescape(Path("conformance-report.html").read_text())
    assert "The case was not judged" in page
    assert 'raise ZeroDivisionError("a bug' in page


def test_a_law_that_raises(conformance, write, cases, monkeypatch):
    """In that case only this law is not checked, as terminal and report say; the other case is unaffected."""

    def judges(window):
        if len(window.forwards) > 1:
            raise TypeError("'<' not supported between 'str' and 'float'")
        yield from ()

    broken = Law("acc/broken", "A window MUST be judged.", "", "", judges=judges, scope=Window)
    monkeypatch.setattr(checking, "laws", lambda known=checking.laws: (*known(), broken))
    ended = conformance("run", write(), "--case", CASE, "--case", OTHER)
    assert (ended.code, ended.err) == (0, "")
    found = {id: (case["verdict"], [*case.get("unchecked", {})]) for (_, id), case in cases().items()}
    assert found == {CASE: ("PASS (exact)", []), OTHER: ("PASS (exact)", ["acc/broken"])}
    raised = "TypeError: '<' not supported between 'str' and 'float'"
    assert f"the law acc/broken raised {raised} in 1 case, which it did not check" in " ".join(ended.out.split())
    page = html.unescape(Path("conformance-report.html").read_text())
    assert "the law acc/broken raised" in page
    assert "Traceback (most recent call last)" in page
    assert "raise TypeError(\"'<' not supported between" in page


def test_an_observer_that_raises(conformance, write, cases):
    """The case in which it raises is not judged, and shows the traceback; the other case is unaffected."""
    ended = conformance("run", write(HURTS_AN_OBSERVER), "--case", CASE, "--case", OTHER)
    assert (ended.code, ended.err) == (1, "")
    assert {id: case["verdict"] for (_, id), case in cases().items()} == {CASE: "PASS (exact)", OTHER: "INCONCLUSIVE"}
    said = "The recorder's part `forward` failed in rank 0, so the trainer cannot be judged"
    assert f"{said}: LookupError: a bug of ours" in " ".join(ended.out.split())
    page = html.unescape(Path("conformance-report.html").read_text())
    assert "Traceback (most recent call last)" in page
    assert 'raise LookupError("a bug of ours")' in page


def test_the_folder_for_temporary_files_is_removed(command, write, cases):
    """By a rank, which also ends its server: all other cases get their verdicts."""
    Path("temporary").mkdir()
    target = write(
        """
        import shutil, tempfile
        if task.accumulation == 2:
            assert os.path.realpath(tempfile.gettempdir()).startswith(os.path.realpath("temporary"))
            shutil.rmtree("temporary")
            os.kill(os.getppid(), 9)
            time.sleep(60)
        """
    )
    chosen = [word for case in (CASE, OTHER, AFTER) for word in ("--case", case)]
    temporary = os.path.abspath("temporary")
    ended = command("run", target, write(), *chosen, "-n", "1", env={"TMPDIR": temporary}).ended()
    assert (ended.code, ended.err) == (1, "")
    assert [case["verdict"] for case in cases().values()] == ["PASS (exact)", "CRASH", *["PASS (exact)"] * 4]


def test_a_bug_of_ours_outside_of_a_case(conformance, write, monkeypatch):
    def broken(*arguments):
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("conformance.report.terminal.render_terminal", broken)
    ended = conformance("run", write(), "--case", CASE)
    assert ended.code == 3
    assert ended.err.splitlines()[-1] == (
        "conformance: the harness failed: ZeroDivisionError: a bug; this is a bug in conformance"
    )
