"""Runs the commands of a job, an action or a page as they are written."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
ADDRESS = "https://github.com/trainer-conformance/trainer-conformance"
INDEX = "https://download.pytorch.org/whl/cpu"
RIGHT = """
from conformance import Task, trainer


@trainer(layouts=["batched"], clips=[], optimizers=["sgd"], models=["linear"], parameter_groups=[1], schedules=[])
def train(task: Task) -> None:
    model = task.model()
    optimizer = task.optimizer(model.parameters())
    for batch in task.dataloader():
        task.loss(model(batch.inputs), batch).backward()
        optimizer.step()
        optimizer.zero_grad()
"""
WRONG = RIGHT.replace("        optimizer.zero_grad()\n", "")


def run(line: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """A line as a job has it run, but with the indexes of this machine."""
    github = {name: str(folder / name) for name in ("GITHUB_STEP_SUMMARY", "GITHUB_OUTPUT")}
    given = {name: value for name, value in environment.items() if value != INDEX}
    ours = {"GITHUB_ACTION_PATH": str(ROOT), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    # No job has what may lead to other code than it installs.
    inherited = {name: of for name, of in os.environ.items() if name not in ("PYTHONPATH", "PYTHONSAFEPATH")}
    env = inherited | github | ours | given
    command = ["bash", "-eo", "pipefail", "-c", line]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)


def workflow(name: str) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((ROOT / ".github/workflows" / f"{name}.yml").read_text())
    return content


def commands(steps: list[dict[str, Any]], **given: str) -> Iterator[tuple[str, Mapping[str, str]]]:
    """The commands of steps, each with its environment, in which `${{ name }}` stands for what is given."""
    for step in steps:
        if "run" in step:
            names = step.get("env", {})
            yield (
                step["run"],
                {name: re.sub(r"\$\{\{ (.+?) \}\}", lambda found: given[found[1]], of) for name, of in names.items()},
            )
