"""What the header of a results file says that results depend on."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pytest

from conformance.cli.surroundings import machine, sources


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_versions_of_what_a_trainer_imports(folder: Path) -> None:
    """Also inside a function, and in a module of its own; nothing that is not installed, and nothing else."""
    (folder / "own").mkdir()
    (folder / "own" / "loop.py").write_text("from rich.text import Text\nimport is_not_there\nimport mine\n")
    (folder / "mine.py").write_text(
        "import os\nfrom own import loop\ndef train(task):\n    import hypothesis.strategies\n"
    )
    found = machine(["mine.py:train"])
    assert (found["rich"], found["hypothesis"]) == (version("rich"), version("hypothesis"))
    assert not {"rich", "hypothesis"}.intersection(machine([]))
    assert {"os", "own", "mine", "is_not_there"}.isdisjoint(found)


def test_an_adapter_is_not_the_framework_of_its_name() -> None:
    found = machine(["accelerate"])
    assert found["accelerate"] == version("accelerate")
    [digest], [other] = (sources([name]).values() for name in ("accelerate", "conformance.frameworks.accelerate"))
    assert digest == other


@pytest.mark.parametrize("content", ["def (", "\0", "import .x"])
def test_what_cannot_be_read_has_no_versions(folder: Path, content: str) -> None:
    (folder / "bad.py").write_text(content)
    assert machine(["bad.py", "nowhere.to.be.found", "missing.py", "a:"]) == machine([])
