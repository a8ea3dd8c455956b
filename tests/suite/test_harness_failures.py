"""What is nobody's fault but the harness's, or the machine's: exit code 3 and one line."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

CASE = "single-batched-fp32-momentum"


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
    """A limit on the size of files stands for it: not even the header fits."""
    Path("conformance-results.jsonl").write_text("earlier results\n")

    def no_room():
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

    ended = command("run", "batched", "--case", CASE, "-n", "1", preexec_fn=no_room).ended()
    assert (ended.code, ended.out) == (3, "")
    assert ended.line.startswith("conformance: the harness failed: cannot write conformance-unfinished-")
    assert ended.line.endswith(".jsonl: File too large")
    assert Path("conformance-results.jsonl").read_text() == "earlier results\n"
    assert list(Path().glob("conformance-unfinished-*")) == []


def test_a_bug_of_ours_is_no_verdict(conformance, write, monkeypatch):
    def broken(*arguments):
        raise ZeroDivisionError("a bug")

    target = write()
    monkeypatch.setattr("conformance.suite.running.judge", broken)
    ended = conformance("run", target, "--case", CASE)
    assert ended.code == 3
    assert "conformance: the harness failed: " in ended.err
    assert "ZeroDivisionError: a bug" in ended.err


def test_a_bug_of_ours_outside_of_a_case(conformance, write, monkeypatch):
    def broken(*arguments):
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("conformance.report.terminal.render_terminal", broken)
    ended = conformance("run", write(), "--case", CASE)
    assert ended.code == 3
    assert ended.err.splitlines()[-1] == (
        "conformance: the harness failed: ZeroDivisionError: a bug; this is a bug of conformance"
    )
