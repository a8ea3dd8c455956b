"""CONTRIBUTING's recipes work: the diff of each is applied to a scratch copy, and its commands are run there."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COPIED = (
    "benchmarks",
    "conformance",
    "docs",
    "fixtures",
    "tests",
    "tools",
    "constraints.txt",
    "noxfile.py",
    "pyproject.toml",
)
PROGRAMS = {"conformance": ["-m", "conformance"], "pytest": ["-m", "pytest"], "python": []}


def recipes() -> dict[str, tuple[str, list[str]]]:
    """For each section "Add a ...", its one diff and the commands of its one shell block."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    found = {}
    for title, body in re.findall(r"^## (Add an? .*?)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL):
        [diff] = re.findall(r"^```diff\n(.*?)^```", body, re.MULTILINE | re.DOTALL)
        [commands] = re.findall(r"^```sh\n(.*?)^```", body, re.MULTILINE | re.DOTALL)
        found[title.removeprefix("Add a").removeprefix("n").strip()] = diff, commands.splitlines()
    return found


RECIPES = recipes()


def test_every_part_that_grows_has_a_recipe():
    assert set(RECIPES) == {"trainer", "framework", "law", "observer", "workload", "mutant", "backend"}


@pytest.mark.parametrize("name", RECIPES)
def test_recipe(name, tmp_path):
    diff, commands = RECIPES[name]
    for entry in COPIED:
        copy = shutil.copytree if (ROOT / entry).is_dir() else shutil.copy
        copy(ROOT / entry, tmp_path / entry)
    # Where CI builds in a folder of the clone, git would take the clone for the diff's repository.
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(tmp_path.parent), "PYTHONPATH": str(tmp_path)}
    subprocess.run(["git", "apply", "-"], input=diff, cwd=tmp_path, env=environment, text=True, check=True)
    for command in commands:
        program, *arguments = shlex.split(command)
        words = [sys.executable, *PROGRAMS[program], *arguments]
        ran = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stdout + ran.stderr
