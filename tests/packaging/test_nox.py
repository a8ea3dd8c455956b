"""nox offers the sessions that the README names, and CI runs all of them that it can."""

from __future__ import annotations

import os
import re
from pathlib import Path

BACKENDS = ["single", "ddp", "horovod", "parameter-server", "ring", "ring-gather"]
FRAMEWORKS = ["accelerate", "lightning", "determined", "ray", "ray-train"]
PROJECT = ["lint", "exercise", "tests"]


def test_a_session_per_backend_per_framework_and_for_the_project(sessions: list[str]) -> None:
    assert sorted(sessions) == sorted([*PROJECT, *BACKENDS, *FRAMEWORKS])


def test_what_takes_too_long_or_needs_a_gpu_is_asked_for(optional_sessions: list[str]) -> None:
    assert sorted(optional_sessions) == ["apex", "fuzz"]


def test_one_commit_of_apex_is_asked_for_everywhere(root: Path) -> None:
    for place in ("noxfile.py", "README.md", "conformance/runner/backends.py"):
        commits = re.findall(r"NVIDIA/apex@(\w*)", (root / place).read_text())
        assert commits == ["e13873debc4699d39c6861074b9a3b2a02327f92"], place


def test_tests_run_last(sessions: list[str]) -> None:
    """So that a run of everything ends on their summary."""
    assert sessions[-1] == "tests"


def test_ci_runs_the_command_of_the_readme(root: Path) -> None:
    script = root / ".ci" / "run"
    assert os.access(script, os.X_OK)
    last = script.read_text().splitlines()[-1]
    assert re.fullmatch(r'"\$environment/bin/nox"', last)


def test_github_takes_its_matrix_from_nox(root: Path, sessions: list[str]) -> None:
    workflow = (root / ".github" / "workflows" / "ci.yml").read_text()
    assert "nox --list-sessions --json" in workflow
    assert "nox -s ${{ matrix.session }}" in workflow
    assert not [name for name in sessions if re.search(rf"nox -s {name}\b", workflow)]
