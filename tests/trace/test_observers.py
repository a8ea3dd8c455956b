"""Observers know the recording and what it knows, and nothing of each other or of the recorder."""

from __future__ import annotations

import ast
from importlib.resources import files

import pytest

from conformance.adapter import loading
from conformance.trace import recorder

from ..trainers.tasks import overflowing, train

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


def test_the_order_of_observers_does_not_matter(monkeypatch):
    spec = {**overflowing(accumulation=2, size=4), "clip": {"kind": "norm", "threshold": 1.0}}
    expected = train(loading.load("accumulated")[0], spec)
    monkeypatch.setattr(recorder, "OBSERVERS", dict(reversed(recorder.OBSERVERS.items())))
    found = train(loading.load("accumulated")[0], spec)
    assert [{**event, "time": 0} for event in found] == [{**event, "time": 0} for event in expected]
