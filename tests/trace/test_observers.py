"""Observers know the recording and what it knows, and nothing of each other or of the recorder."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest

from conformance.adapter import loading
from conformance.trace import recorder

from ..trainers.tasks import overflowing, train

CONTRIBUTING = Path(__file__).parents[2] / "CONTRIBUTING.md"
TRACE = files("conformance.trace")
MODULES = {path.relative_to(TRACE).with_suffix("").as_posix(): path for path in TRACE.rglob("*.py")}
OBSERVERS = sorted(name for name in MODULES if name.startswith("observers/") and not name.endswith("__init__"))


def imports(name):
    """The modules of `conformance.trace` that one imports, in whatever block."""
    nodes = ast.walk(ast.parse(MODULES[name].read_text(encoding="utf-8")))
    named = set()
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            named |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            named |= {alias.name for alias in node.names}
    paths = {one.removeprefix("conformance.trace.").replace(".", "/") for one in named}
    return (paths | {f"{path}/__init__" for path in paths}) & MODULES.keys()


def test_nothing_imports_an_observer():
    """The recorder finds them by their folder."""
    assert [(name, found) for name in MODULES if (found := imports(name) & set(OBSERVERS))] == []
    assert [f"observers/{name}" for name in recorder.OBSERVERS] == OBSERVERS


@pytest.mark.parametrize("name", OBSERVERS)
def test_an_observer_does_not_know_the_recorder(name):
    assert "emit" in imports(name)
    assert "recorder" not in imports(name)


def test_no_modules_import_each_other_in_a_circle():
    below = {name: imports(name) for name in MODULES}
    while free := [name for name, found in below.items() if not found & below.keys()]:
        for name in free:
            del below[name]
    assert below == {}


def test_the_order_of_observers_does_not_matter(monkeypatch):
    spec = {**overflowing(accumulation=2, size=4), "clip": {"kind": "norm", "threshold": 1.0}}
    expected = train(loading.load("accumulated")[0], spec)
    monkeypatch.setattr(recorder, "OBSERVERS", dict(reversed(recorder.OBSERVERS.items())))
    found = train(loading.load("accumulated")[0], spec)
    assert [{**event, "time": 0} for event in found] == [{**event, "time": 0} for event in expected]


ADDED = """
from torch.utils.data import DistributedSampler

from conformance.trace.events import read
from conformance.trace.recorder import Recorder

with Recorder(lambda event: print(read(event).label, event["epoch"])):
    DistributedSampler([1.0], num_replicas=1, rank=0).set_epoch(3)
"""


def test_the_observer_that_contributing_adds_is_found(tmp_path):
    """On a copy of the package, by the section's diff and nothing else."""
    shutil.copytree(TRACE.parent, tmp_path / "conformance", ignore=shutil.ignore_patterns("__pycache__"))
    section = CONTRIBUTING.read_text(encoding="utf-8").partition("## Add an observer\n")[2].partition("\n## ")[0]
    [diff] = re.findall(r"```diff\n(.*?)```", section, re.DOTALL)
    subprocess.run(["git", "apply", "-"], cwd=tmp_path, input=diff, text=True, check=True)

    def said(*args):
        return subprocess.run([sys.executable, *args], cwd=tmp_path, capture_output=True, text=True, check=True).stdout

    said("-m", "conformance.trace.schema")
    assert "`set_epoch`" in (tmp_path / "conformance/trace/TRACE.md").read_text(encoding="utf-8")
    assert said("-c", ADDED) == "set epoch 3\n"
