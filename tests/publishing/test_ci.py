"""The files for CI systems: their commands, run as they are written, let a right trainer pass and stop a wrong one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

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


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A search path with a pip that finds all requirements of this package installed, and installs beside them."""
    environment = tmp_path_factory.mktemp("job")
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    [site] = environment.glob("lib/python*/site-packages")
    (site / "installed.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    return f"{environment / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with a trainer, and nothing else."""
    (tmp_path / "my_trainer.py").write_text(RIGHT)
    return tmp_path


def run(line: str, folder: Path, root: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """A line as a job has it run."""
    github = {"GITHUB_STEP_SUMMARY": str(folder / "summary.md"), "GITHUB_ACTION_PATH": str(root)}
    command = ["bash", "-eo", "pipefail", "-c", line]
    env = os.environ | github | environment
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)


def lines(file: Path) -> Iterator[tuple[str, Mapping[str, str]]]:
    """The commands of a file's only job, or of an action, with the environment that it gives them."""
    content: dict[str, Any] = yaml.safe_load(file.read_text())
    if "runs" in content:
        given = {f"inputs.{name}": one.get("default", "my_trainer.py") for name, one in content["inputs"].items()}
        steps = content["runs"]["steps"]
    else:
        [job] = content["jobs"].values() if "jobs" in content else [content["conformance"]]
        given, steps = {}, job.get("steps") or [{"run": line} for line in job["script"]]
    for step in steps:
        if "run" in step:
            names = step.get("env", {})
            yield step["run"], {name: given[re.fullmatch(r"\$\{\{ (.+) \}\}", of)[1]] for name, of in names.items()}


@pytest.mark.parametrize("file", ["docs/ci/github.yml", "action.yml"])
def test_a_right_trainer_passes(file: str, project: Path, root: Path, programs: str) -> None:
    install, judge = lines(root / file)
    for line, environment in (install, judge):
        ran = run(line, project, root, PATH=programs, **environment)
        assert ran.returncode == 0, ran.stdout + ran.stderr
    assert install[0].startswith("pip install ")
    left = {path.name for path in (project / "build/conformance").iterdir()}
    assert left >= {"conformance-report.html", "conformance-results.jsonl", "junit.xml"}
    assert "## Conforming" in (project / "summary.md").read_text()


def test_a_wrong_trainer_is_stopped(project: Path, root: Path, programs: str) -> None:
    (project / "my_trainer.py").write_text(WRONG)
    (install, _), (judge, _) = lines(root / "docs/ci/gitlab.yml")
    assert run(install, project, root, PATH=programs).returncode == 0
    ran = run(judge, project, root, PATH=programs, GITHUB_ACTIONS="true")
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert "::error file=my_trainer.py" in ran.stdout
    assert "acc/cleared-between-windows" in (project / "summary.md").read_text()


def test_actions_are_pinned_by_hash(root: Path) -> None:
    """A tag can be moved to other code. Pages name our own action by its branch: no file can contain its own hash."""
    files = [*root.glob(".github/workflows/*.yml"), *root.glob("*.yml"), *root.glob("docs/**/*.yml")]
    files += [root / "README.md", *root.glob("docs/**/*.md")]
    used = [line for file in files for line in re.findall(r"^[- ]*uses: *(.+)$", file.read_text(), re.MULTILINE)]
    others = [line for line in used if not line.startswith(("./", "trainer-conformance/trainer-conformance@"))]
    assert len(others) > 10
    assert [line for line in others if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line)] == []


def test_the_action_installs_what_the_tests_run_with(root: Path) -> None:
    (install, _), _ = lines(root / "action.yml")
    assert install == 'pip install -c "$GITHUB_ACTION_PATH/constraints.txt" "$GITHUB_ACTION_PATH"'


def test_our_own_workflow_calls_the_action_with_what_it_takes(root: Path) -> None:
    takes = yaml.safe_load((root / "action.yml").read_text())["inputs"]
    workflow = yaml.safe_load((root / ".github/workflows/conformance.yml").read_text())
    [call] = [step for step in workflow["jobs"]["backend"]["steps"] if step.get("uses") == "./"]
    assert call["with"].keys() <= takes.keys()
    assert [name for name, one in takes.items() if one.get("required") and name not in call["with"]] == []


def test_the_jobs_of_our_own_workflow_are_merged_into_one_report(project: Path, root: Path, programs: str) -> None:
    """The results of one job stand for those of all."""
    workflow = yaml.safe_load((root / ".github/workflows/conformance.yml").read_text())
    folder = project / "build/backends/conformance-single"
    folder.mkdir(parents=True)
    (folder / "conformance-results.jsonl").write_bytes((root / "reports/fastai.jsonl").read_bytes())
    install, merge = (step["run"] for step in workflow["jobs"]["report"]["steps"] if "run" in step)
    assert install == "pip install -c constraints.txt ."
    ran = run(merge, project, root, PATH=programs)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert (project / "build/conformance/conformance-report.html").exists()
