"""nox offers the sessions that the README names, and CI runs all of them."""

from __future__ import annotations

import os
import re
from pathlib import Path

BACKENDS = ["single", "ddp", "horovod", "parameter-server", "ring", "ring-gather"]
FRAMEWORKS = ["accelerate", "lightning", "determined"]
PROJECT = ["lint", "exercise", "tests"]


def test_a_session_per_backend_per_framework_and_for_the_project(sessions: list[str]) -> None:
    assert sorted(sessions) == sorted([*PROJECT, *BACKENDS, *FRAMEWORKS])


def test_what_takes_too_long_for_every_change_is_asked_for(optional_sessions: list[str]) -> None:
    assert optional_sessions == ["fuzz"]


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
