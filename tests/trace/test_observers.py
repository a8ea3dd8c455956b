"""Observers do not depend on each other; tests/structure checks that they do not import the recorder."""

from __future__ import annotations

import re
from importlib.resources import files

from conformance.adapter import loading
from conformance.trace import recorder

from ..trainers.tasks import overflowing, train

MODULES = {path: path.read_text(encoding="utf-8") for path in files("conformance.trace").rglob("*.py")}


def test_nothing_imports_an_observer():
    """The recorder finds observers by their folder."""
    names = sorted(path.stem for path in MODULES if path.parent.name == "observers" and path.stem != "__init__")
    assert [*recorder.OBSERVERS] == names
    assert [
        path for path, text in MODULES.items() if re.search(r"(from|import) conformance\.trace\.observers", text)
    ] == []


def test_the_order_of_observers_does_not_matter(monkeypatch):
    spec = {**overflowing(accumulation=2, size=4), "clip": {"kind": "norm", "threshold": 1.0}}
    expected = train(loading.load("accumulated")[0], spec)
    monkeypatch.setattr(recorder, "OBSERVERS", dict(reversed(recorder.OBSERVERS.items())))
    found = train(loading.load("accumulated")[0], spec)
    assert [{**event, "time": 0} for event in found] == [{**event, "time": 0} for event in expected]
