"""The workflow of a release: its commands build files that install and run, and refuse a tag of another version."""

from __future__ import annotations

from pathlib import Path

import nox
import pytest

from .jobs import ROOT, commands, run, workflow

VERSION = nox.project.load_toml(ROOT / "pyproject.toml")["project"]["version"]
JOBS = workflow("release")["jobs"]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the `dist` of the job `build`, whose commands run in the checkout but write there."""
    folder = tmp_path_factory.mktemp("built")
    (install, _), (answers, _), (build, _), (check_tag, _), (check, _) = commands(JOBS["build"]["steps"])
    # The session has them.
    assert install == "pip install -c constraints.txt build twine -e ."
    assert answers == "python tools/answers.py"
    ran = run(build.replace("--outdir dist", f"--outdir {folder}/dist"), ROOT)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    for line in (check_tag, check):
        ran = run(line, folder, GITHUB_REF_NAME=f"v{VERSION}")
        assert ran.returncode == 0, ran.stdout + ran.stderr
    assert run(check_tag, folder, GITHUB_REF_NAME="v9.9.9").returncode != 0
    return folder


def test_both_files_install_and_run(built: Path, programs: str) -> None:
    (install, _), (smoke, _) = commands(JOBS["install"]["steps"], **{"matrix.distribution": "whl"})
    for distribution in JOBS["install"]["strategy"]["matrix"]["distribution"]:
        removed = run("pip uninstall --quiet --yes trainer-conformance", built, PATH=programs)
        assert removed.returncode == 0, removed.stderr
        ran = run(f"{install} && {smoke}", built, PATH=programs, DISTRIBUTION=distribution)
        assert ran.returncode == 0, ran.stdout + ran.stderr


def test_the_index_serves_what_the_guide_installs(built: Path, programs: str) -> None:
    environment = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(built / "dist")}
    ran = run("pip install --ignore-installed --no-deps trainer-conformance", built, PATH=programs, **environment)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_the_sessions_test_the_wheel_that_was_built() -> None:
    """noxfile.py builds none where CONFORMANCE_WHEELS has one."""
    steps = JOBS["test"]["steps"]
    [download] = [step["with"]["path"] for step in steps if "download-artifact" in step.get("uses", "")]
    given = {"matrix.session": "tests", "github.workspace": "/checkout"}
    *_, (session, environment) = commands(steps, **given)
    assert session == 'nox -s "$SESSION"'
    assert environment == {"SESSION": "tests", "CONFORMANCE_WHEELS": f"/checkout/{download.rstrip('/')}"}
    assert Path(download).parent == Path("build/wheel")


def test_only_tested_files_are_published_with_attestations(built: Path, tmp_path: Path) -> None:
    pypi, github = JOBS["pypi"], JOBS["github"]
    assert set(pypi["needs"]) == {"install", "test"}
    assert github["needs"] == "pypi"
    [publish] = [step for step in pypi["steps"] if step["uses"].startswith("pypa/gh-action-pypi-publish@")]
    assert publish["with"] == {"attestations": True}
    (tmp_path / "gh").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (tmp_path / "gh").chmod(0o755)
    [(release, environment)] = commands(github["steps"], **{"github.token": "secret"})
    names = {"GITHUB_REF_NAME": f"v{VERSION}", "GITHUB_REPOSITORY": "trainer-conformance/trainer-conformance"}
    ran = run(release, built, PATH=f"{tmp_path}:/usr/bin:/bin", **names, **environment)
    wheel, sdist = f"trainer_conformance-{VERSION}-py3-none-any.whl", f"trainer_conformance-{VERSION}.tar.gz"
    assert ran.stdout.split()[:3] == ["release", "create", f"v{VERSION}"]
    assert ran.stdout.split()[-2:] == [f"dist/{wheel}", f"dist/{sdist}"]
