"""The nightly workflow: its commands judge a framework, say what broke, and leave the pages of a site."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from types import ModuleType

import pytest

from .jobs import ROOT, commands, run, workflow

JOBS = workflow("nightly")["jobs"]
MATRIX = JOBS["run"]["strategy"]["matrix"]
#: Both passed when the report was made. The last one fails now, because its adapter does not accumulate.
CASES = ("single-batched-fp32-momentum", "single-acc2-fp32-momentum")
#: What is installed is from before this day, for as long as the index says when it got it.
DAY = "2026-11-01"


@pytest.fixture(scope="module")
def noxfile() -> ModuleType:
    spec = importlib.util.spec_from_file_location("noxfile", ROOT / "noxfile.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_each_framework_runs_with_the_arguments_of_its_report(noxfile: ModuleType) -> None:
    assert MATRIX["extra"] == [*noxfile.FRAMEWORKS]
    given = {one["extra"]: one.get("arguments", "").split() for one in MATRIX["include"]}
    for name in MATRIX["extra"]:
        default = [f"conformance.frameworks.{name.replace('-', '_')}"]
        assert (given[name] or default) == [*noxfile.REPORTS[name].arguments]
    [excluded] = MATRIX["exclude"]
    without = [one["extra"] for one in MATRIX["include"] if "main" not in one]
    assert (excluded["of"], [excluded["extra"]]) == ("main", without)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the jobs use of a checkout, with a report of an older release, and a regression."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in (
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "constraints.txt",
        "reports/README.md",
        "docs/findings.md",
    ):
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    for name in ("conformance", "tools"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    header, *cases = (ROOT / "reports/ignite.jsonl").read_text().splitlines(keepends=True)
    (folder / "reports/ignite.jsonl").write_text("".join([header.replace("0.5.5", "0.5.4"), *cases]))
    adapter = folder / "conformance/frameworks/ignite.py"
    accumulates = '"gradient_accumulation_steps": task.accumulation'
    assert accumulates in adapter.read_text()
    adapter.write_text(adapter.read_text().replace(accumulates, '"gradient_accumulation_steps": 1'))
    return folder


def test_a_night(checkout: Path, programs: str) -> None:
    environment = {"PATH": programs, "EXTRA": "ignite", "PIP_UPLOADED_PRIOR_TO": DAY}
    environment["ARGUMENTS"] = " ".join(["conformance.frameworks.ignite", *(f"--case {case}" for case in CASES)])
    (newest, _), (main, given), (install, _), (judge, _) = commands(
        JOBS["run"]["steps"], **{"matrix.main": "x @ git+y"}
    )
    for line in (newest, install, judge):
        ran = run(line, checkout, **environment)
        assert ran.returncode == 0, ran.stdout + ran.stderr
    (checkout / "build/nightly").rename(checkout / "found")
    (checkout / "build/nightly").mkdir()
    (checkout / "found").rename(checkout / "build/nightly/nightly-ignite.release")
    ran = run(main, checkout, **given)
    assert (checkout / "newest.txt").read_text().split("\n")[2:] == ["x @ git+y", ""]

    (install, _), (compare, _), (summary, _), (site, _) = commands(JOBS["compare"]["steps"])
    assert (install, site) == ("pip install -c constraints.txt nox .", "nox -s docs")
    for line in (compare, summary):
        ran = run(line, checkout, PATH=programs)
        assert ran.returncode == 0, ran.stdout + ran.stderr
    assert (checkout / "GITHUB_OUTPUT").read_text() == "broken=ignite (release)\n"
    issue = (checkout / "build/nightly/issue.md").read_text()
    assert (checkout / "GITHUB_STEP_SUMMARY").read_text().endswith(issue)
    assert "## ignite (release): pytorch-ignite 0.5.4 → 0.5.5\n" in issue
    ends = "--good pytorch-ignite==0.5.4 --bad pytorch-ignite==0.5.5"
    assert f"conformance bisect {ends} -- {CASES[1]} conformance.frameworks.ignite\n" in issue
    assert "pytorch-ignite 0.5.5" in (checkout / "reports/index.html").read_text()
    assert (checkout / "reports/ignite.html").exists()


@pytest.mark.parametrize(("open_issues", "told"), [("", "create --label nightly"), ("7", "edit 7")])
def test_one_issue_stays_open(tmp_path: Path, open_issues: str, told: str) -> None:
    (tmp_path / "gh").write_text(f'#!/bin/sh\necho "$@" >> told\n[ "$2" != list ] || echo "{open_issues}"\n')
    (tmp_path / "gh").chmod(0o755)
    for line, _ in commands(JOBS["issue"]["steps"]):
        ran = run(line, tmp_path, PATH=f"{tmp_path}:/usr/bin:/bin", TITLE="Nightly: ignite (release)")
        assert ran.returncode == 0, ran.stderr
    last = (tmp_path / "told").read_text().splitlines()[-1]
    assert last == f"issue {told} --title Nightly: ignite (release) --body-file issue.md"
