"""The package has layers: each import goes down, and no files import each other in a circle."""

from __future__ import annotations

from pathlib import Path

import pytest

import conformance

from .imports import circles, imports, room

PACKAGE = Path(conformance.__file__).parent

#: From the lowest layer up. Packages on one layer do not import each other.
FLOORS = (
    (
        "conformance.workloads.precision",
        "conformance.workloads.behaviour",
        "conformance.workloads.model",
        "conformance.workloads.reading_plan",
    ),
    ("conformance.adapter", "conformance.workloads"),
    ("conformance.oracle", "conformance.trace.short_texts", "conformance.trace.seams"),
    ("conformance.cases", "conformance.trace.tensor_values", "conformance.trace.events"),
    ("conformance.trace.state",),
    ("conformance.trace.emit",),
    ("conformance.trace.observers",),
    ("conformance.trace",),
    ("conformance.laws", "conformance.runner.system"),
    ("conformance.runner.outcome",),
    ("conformance.runner.rank",),
    ("conformance.runner.case",),
    ("conformance.runner.zygote", "conformance.runner.front"),
    ("conformance.runner",),
    # Names that trainers import.
    ("conformance",),
    ("conformance.trainers", "conformance.frameworks", "conformance.results"),
    ("conformance.verdict",),
    ("conformance.report",),
    ("conformance.init", "conformance.repro", "conformance.suite", "conformance.watch"),
    ("conformance.launchers",),
    ("conformance.callbacks", "conformance.plugin", "conformance.running"),
    ("conformance.cli",),
    ("conformance.__main__",),
)
FLOOR = {name: number for number, floor in enumerate(FLOORS) for name in floor}


@pytest.fixture(scope="module")
def graph() -> dict[str, set[str]]:
    return imports(PACKAGE)


def test_every_file_has_a_floor(graph):
    """`conformance` itself is one file: each of its packages is named."""
    packages = {module.split(".")[1] for module in graph if "." in module}
    assert packages == {name.split(".")[1] for name in FLOOR if "." in name}


def test_no_import_runs_upward(graph):
    rooms = tuple(FLOOR)
    upward = {
        f"{module} -> {other}"
        for module, others in graph.items()
        for other in others
        if (here := room(module, rooms)) != (there := room(other, rooms)) and FLOOR[here] <= FLOOR[there]
    }
    assert sorted(upward) == []


def test_no_files_import_each_other_in_a_circle(graph):
    assert circles(graph) == []


def test_an_import_upward_and_a_circle_would_be_found(tmp_path):
    """Each kind of import statement closes the circle once."""
    package = tmp_path / "house"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "a.py").write_text("def late():\n    from house import b\n")
    (package / "b.py").write_text("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from house.c import name\n")
    (package / "c.py").write_text("import house.a\n")
    (package / "d.py").write_text("from house import a\nfrom . import c\nfrom .b import name\n")
    found = imports(package)
    assert found["house.d"] == {"house.a", "house.b", "house.c"}
    assert circles(found) == [{"house.a", "house.b", "house.c"}]
