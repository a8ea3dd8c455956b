"""`conformance list`, the bare command, and shell completion."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from conformance.adapter.backends import BACKENDS
from conformance.adapter.loading import reference_names
from conformance.laws.law import laws
from conformance.workloads.registry import STANDARD


@pytest.fixture
def listed(conformance, monkeypatch):
    """The first words in the lines of `conformance list`."""
    monkeypatch.setenv("COLUMNS", "300")

    def run(*arguments: str) -> list[str]:
        ended = conformance("list", *arguments)
        assert ended.code == 0
        return [line.split()[0] for line in ended.out.splitlines()]

    return run


def test_what_there_is(listed):
    assert listed("trainers") == list(reference_names())
    assert listed("backends") == list(BACKENDS)
    assert listed("workloads") == list(STANDARD)
    assert {law.id for law in laws()} <= set(listed("laws"))


def test_cases_are_those_of_a_run(listed):
    assert listed("cases", "accumulated", "--case", "single-acc2-fp[136][246]-clip-n*") == [
        f"single-acc2-{precision}-clip-norm" for precision in ("fp64", "fp32", "fp16")
    ]


def test_of_several_trainers_each_case_names_its_own(listed):
    assert listed(
        "cases", "single", "batched", "--case", "workload=momentum,precision=fp32,device=cpu,resumed_at=None"
    ) == [
        "single:single-samples-fp32-momentum",
        "batched:single-batched-fp32-momentum",
    ]


def test_cases_that_there_are_not(conformance):
    ended = conformance("list", "cases", "batched", "--case", "sinlge")
    assert ended.code == 2
    assert ended.line == "conformance: no case matches sinlge for these trainers; did you mean 'single'?"


def test_a_bare_command_prints_help(conformance):
    ended = conformance()
    assert (ended.code, ended.err) == (2, "")
    assert ended.out.startswith("usage: conformance [-h] [--version]")


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("conformance li", {"list "}),
        ("conformance run --back", {"--backend "}),
        ("conformance run --backend horo", {"horovod "}),
        ("conformance run zero", {"zero_redundancy "}),
        ("conformance run my", {"my_trainer.py "}),
    ],
)
def test_what_a_shell_completes(tmp_path: Path, line: str, found: set[str]):
    (tmp_path / "my_trainer.py").touch()
    answer = tmp_path / "answer"
    asked = {
        **os.environ,
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(answer),
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
    }
    subprocess.run([sys.executable, "-m", "conformance"], cwd=tmp_path, env=asked, check=True)
    assert set(answer.read_text().split("\013")) == found
