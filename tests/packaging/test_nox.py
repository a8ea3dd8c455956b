"""nox has the sessions that the README names, and CI runs all that it can."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import pytest

BACKENDS = ["single", "ddp", "horovod", "fsdp2", "zero-redundancy", "parameter-server", "ring", "ring-gather"]
FRAMEWORKS = ["accelerate", "lightning", "determined", "ray", "ray-train"]
SLOW_FRAMEWORKS = [
    *("catalyst", "deepspeed", "fabric", "fastai", "funasr", "ignite", "keras", "mmengine", "monai", "poutyne"),
    *("pytorch-accelerated", "pytorch-metric-learning", "sentence-transformers", "skorch", "speechbrain", "torchtnt"),
    *("transformers", "trl"),
]
PROJECT = ["lint", "docs", "package", "tests"]


def test_a_session_per_backend_per_framework_and_for_the_project(sessions: list[str]) -> None:
    assert sorted(sessions) == sorted([*PROJECT, *BACKENDS, *FRAMEWORKS])


def test_what_takes_too_long_or_needs_a_gpu_is_asked_for(optional_sessions: list[str]) -> None:
    asked_for = {name for name in optional_sessions if not name.startswith(("findings(", "reports("))}
    asked = {
        "apex",
        "browser",
        "deepspeed-further",
        "faults",
        "fuzz",
        "history",
        "reproduced",
        "rows",
        "torch-newest",
        "torch-oldest",
        "watch",
    }
    assert asked_for == {*asked, *SLOW_FRAMEWORKS}


def test_what_is_thorough_has_a_tag(root: Path) -> None:
    command = [sys.executable, "-m", "nox", "--list-sessions", "--json", "--tags", "thorough"]
    said = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True)
    thorough = {"faults", "fuzz", "history", "reproduced", "rows", "watch"}
    assert {session["name"] for session in json.loads(said.stdout)} == thorough


def test_each_framework_has_a_report(optional_sessions: list[str]) -> None:
    reported = {name for name in optional_sessions if name.startswith("reports(")}
    assert reported > {f"reports({name})" for name in ("single", *FRAMEWORKS, *SLOW_FRAMEWORKS) if name != "ray"}


def test_each_framework_with_a_report_has_its_findings_run(optional_sessions: list[str]) -> None:
    found = {name for name in optional_sessions if name.startswith("findings(")}
    assert found == {f"findings({name})" for name in (*FRAMEWORKS, *SLOW_FRAMEWORKS) if name != "ray"}


def test_one_commit_of_apex_is_asked_for_everywhere(root: Path) -> None:
    for place in ("noxfile.py", "docs/paths.md", "conformance/runner/rank/requirements.py"):
        commits = re.findall(r"NVIDIA/apex@(\w*)", (root / place).read_text())
        assert commits == ["e13873debc4699d39c6861074b9a3b2a02327f92"], place


def test_tests_run_last(sessions: list[str]) -> None:
    """So a run of everything ends with their summary."""
    assert sessions[-1] == "tests"


def test_ci_runs_the_command_of_the_readme(root: Path) -> None:
    script = root / ".ci" / "run"
    assert os.access(script, os.X_OK)
    last = script.read_text().splitlines()[-1]
    assert re.fullmatch(r'"\$environment/bin/nox"', last)


def test_github_takes_its_matrix_from_nox(root: Path, sessions: list[str]) -> None:
    workflow = (root / ".github" / "workflows" / "ci.yml").read_text()
    assert "nox --list-sessions --json" in workflow
    assert 'nox -s "$SESSION"\n        env:\n          SESSION: ${{ matrix.session }}' in workflow
    assert not [name for name in sessions if re.search(rf"nox -s {name}\b", workflow)]


@pytest.fixture(scope="module")
def noxfile(root: Path) -> ModuleType:
    """The noxfile, loaded once, as it registers its sessions."""
    spec = importlib.util.spec_from_file_location("noxfile", root / "noxfile.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("words", "at_a_time"), [([], "2"), (["-s", "ddp"], "None")])
def test_a_plain_run_has_two_sessions_at_a_time(root: Path, words: list[str], at_a_time: str) -> None:
    """The output of a named session appears immediately, not at its end."""
    code = "import nox, runpy; runpy.run_path('noxfile.py'); print(nox.options.parallel)"
    command = [sys.executable, "-c", code, *words]
    # `-c` is the program's name here.
    said = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True)
    assert said.stdout.strip() == at_a_time


def test_the_tests_run_alone(noxfile: ModuleType) -> None:
    assert noxfile.tests.allow_parallel is False
    assert noxfile.nox.options.allow_parallel is True


def test_a_run_builds_one_wheel_for_all_its_sessions(
    noxfile: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also for sessions that need it at the same time; the next run builds another, and removes it."""
    built = []

    class Session:
        def run_install(self, *command: str) -> None:
            folder = Path(command[command.index("--wheel-dir") + 1])
            built.append(folder.name)
            # A session that does not wait finds nothing yet.
            time.sleep(0.2)
            folder.mkdir(parents=True)
            (folder / "ours.whl").touch()

    monkeypatch.setattr(noxfile, "ROOT", tmp_path)
    for run in ("one", "two"):
        monkeypatch.setattr(noxfile, "WHEELS", tmp_path / "build" / "wheel" / run)
        with ThreadPoolExecutor(2) as sessions:
            assert [*sessions.map(noxfile.built_wheel, [Session(), Session()])] == [noxfile.WHEELS / "ours.whl"] * 2
    assert built == ["one", "two"]
    assert [folder.name for folder in noxfile.WHEELS.parent.iterdir()] == ["two"]


def environment(folder: Path, files: dict[str, str]) -> Path:
    """An imitation of a virtual environment: these files in its site-packages."""
    site = folder / "lib/python3.11/site-packages"
    site.mkdir(parents=True)
    (folder / "bin").mkdir()
    for name, text in files.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(text)
    return site


def test_torch_is_linked_from_a_neighbour_that_has_it(noxfile: ModuleType, tmp_path: Path) -> None:
    """All of it, with compiled files and the new environment's own scripts; and nothing else."""
    record = "torch/a.py,,\ntorch-2.dist-info/RECORD,,\nhelper.py,,\n../../../bin/torchrun,,\n"
    files = {
        "torch/a.py": "1",
        "torch/__pycache__/a.pyc": "2",
        "torch-2.dist-info/RECORD": record,
        "helper.py": "3",
        "../../../bin/torchrun": f"#!{tmp_path}/ddp/bin/python\n",
    }
    theirs = environment(tmp_path / "ddp", files | {"other/b.py": "4", "torchmetrics-1.dist-info/RECORD": "other/b.py"})
    environment(tmp_path / "lint", {"torch/a.py": "not compiled", "torch-2.dist-info/RECORD": "torch/a.py"})
    # As from a process that is compiling it now.
    (theirs / "torch/__pycache__/a.pyc.140234").touch()
    # As after an interrupted attempt.
    ours = environment(tmp_path / "ring", {"torch/a.py": "1", "helper.py": "3"})
    for _ in range(2):
        noxfile.link("torch", tmp_path / "ring")
    assert {str(path.relative_to(ours)) for path in ours.rglob("*") if path.is_file()} == files.keys() - {
        "../../../bin/torchrun"
    }
    assert (ours / "torch/__pycache__/a.pyc").samefile(theirs / "torch/__pycache__/a.pyc")
    assert (tmp_path / "ring/bin/torchrun").read_text() == f"#!{tmp_path}/ring/bin/python\n"


def test_where_no_neighbour_has_it_nothing_is_linked(noxfile: ModuleType, tmp_path: Path) -> None:
    site = environment(tmp_path / "lint", {})
    noxfile.link("torch", tmp_path / "lint")
    assert list(site.iterdir()) == []


def test_each_script_of_a_finding_is_run_by_the_session_of_one_framework(noxfile: ModuleType, root: Path) -> None:
    beginnings = [f"{name.replace('-', '_')}_" for name in noxfile.FRAMEWORKS]
    scripts = {
        script.name: sum(map(script.name.startswith, beginnings)) for script in root.glob("reports/findings/*.py")
    }
    assert scripts
    assert set(scripts.values()) == {1}, scripts
