"""The files for CI systems: their commands, run as they are written, pass a correct trainer and fail a wrong one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from .jobs import INDEX, ROOT, WRONG, commands, run, workflow

PAGES = (ROOT / "README.md", *ROOT.glob("docs/**/*.md"))


def lines(name: str) -> list[tuple[str, Mapping[str, str]]]:
    """The commands of a file's only job, or of an action, with the environment that it gives them."""
    content: dict[str, Any] = yaml.safe_load((ROOT / name).read_text())
    if "runs" in content:
        given = {f"inputs.{name}": one.get("default", "my_trainer.py") for name, one in content["inputs"].items()}
        return [*commands(content["runs"]["steps"], **given)]
    [job] = content["jobs"].values() if "jobs" in content else [content["conformance"]]
    return [*commands(job.get("steps") or [{"run": line} for line in job["script"]])]


@pytest.mark.parametrize("file", ["docs/ci/github.yml", "action.yml"])
def test_a_right_trainer_passes(file: str, project: Path, programs: str, repository: dict[str, str]) -> None:
    install, judge = lines(file)
    for line, environment in (install, judge):
        ran = run(line, project, PATH=programs, **repository, **environment)
        assert ran.returncode == 0, ran.stdout + ran.stderr
    assert install[0].startswith("pip install ")
    left = {path.name for path in (project / "build/conformance").iterdir()}
    assert left >= {"conformance-report.html", "conformance-results.jsonl", "junit.xml"}
    assert "## CONFORMS" in (project / "GITHUB_STEP_SUMMARY").read_text()


def test_a_wrong_trainer_is_stopped(project: Path, programs: str, repository: dict[str, str]) -> None:
    (project / "my_trainer.py").write_text(WRONG)
    (install, _), (judge, _) = lines("docs/ci/gitlab.yml")
    ran = run(install, project, PATH=programs, **repository)
    assert ran.returncode == 0, ran.stderr
    ran = run(judge, project, PATH=programs, GITHUB_ACTIONS="true")
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert "::error file=my_trainer.py" in ran.stdout
    assert "acc/cleared-between-windows" in (project / "GITHUB_STEP_SUMMARY").read_text()


def test_actions_are_pinned_by_hash() -> None:
    """A tag can be moved to other code. Pages name our own action by its branch: no file can contain its own hash."""
    files = [*ROOT.glob(".github/workflows/*.yml"), *ROOT.glob("*.yml"), *ROOT.glob("docs/**/*.yml"), *PAGES]
    used = [line for file in files for line in re.findall(r"^[- ]*uses: *(.+)$", file.read_text(), re.MULTILINE)]
    others = [line for line in used if not line.startswith(("./", "trainer-conformance/trainer-conformance@"))]
    assert len(others) > 10
    assert [line for line in others if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line)] == []


def test_jobs_may_write_only_what_they_publish() -> None:
    write = {}
    for file in (*ROOT.glob(".github/workflows/*.yml"), ROOT / "docs/ci/github.yml"):
        content = yaml.safe_load(file.read_text())
        assert content["permissions"] == {"contents": "read"}
        for name, job in content["jobs"].items():
            if granted := {what for what, level in job.get("permissions", {}).items() if level == "write"}:
                write[f"{file.stem}: {name}"] = granted
    assert write == {
        "release: pypi": {"id-token"},
        "release: github": {"contents"},
        "nightly: site": {"pages", "id-token"},
        "nightly: issue": {"issues"},
    }


def test_torch_comes_from_the_index_without_cuda() -> None:
    """In each file whose jobs install it."""
    jobs = [
        *ROOT.glob(".github/workflows/*.yml"),
        *ROOT.glob("docs/ci/*.yml"),
        ROOT / "action.yml",
        ROOT / "Dockerfile",
    ]
    assert [file.name for file in jobs if INDEX not in file.read_text()] == []


def test_the_action_installs_what_the_tests_run_with() -> None:
    (install, environment), _ = lines("action.yml")
    assert install == 'pip install -c "$GITHUB_ACTION_PATH/constraints.txt" "$GITHUB_ACTION_PATH"'
    assert environment == {"PIP_EXTRA_INDEX_URL": INDEX}


def test_our_own_workflow_calls_the_action_with_what_it_takes() -> None:
    takes = yaml.safe_load((ROOT / "action.yml").read_text())["inputs"]
    [call] = [step for step in workflow("conformance")["jobs"]["backend"]["steps"] if step.get("uses") == "./"]
    assert call["with"].keys() <= takes.keys()
    assert [name for name, one in takes.items() if one.get("required") and name not in call["with"]] == []


def test_the_jobs_of_our_own_workflow_are_merged_into_one_report(project: Path, programs: str) -> None:
    """The results of one job stand for those of all."""
    folder = project / "build/backends/conformance-single"
    folder.mkdir(parents=True)
    (folder / "conformance-results.jsonl").write_bytes((ROOT / "reports/fastai.jsonl").read_bytes())
    (install, _), (merge, _) = commands(workflow("conformance")["jobs"]["report"]["steps"])
    assert install == "pip install -c constraints.txt ."
    ran = run(merge, project, PATH=programs)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert (project / "build/conformance/conformance-report.html").exists()
