"""Versions and files in the header of a results file, found from a trainer's imports without importing them."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from importlib.metadata import version
from importlib.util import spec_from_file_location
from pathlib import Path

import pytest

from conformance.cli.versions import imported, machine, sources


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_versions_of_what_a_trainer_imports(folder: Path) -> None:
    """Also in a function, and in its own module; nothing that is not installed, and nothing else."""
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
    names = ("accelerate", "conformance.frameworks.accelerate")
    one, other = (files.items() for files in sources(names).values())
    [(name, _)] = one & other
    assert Path(name).parts[-2:] == ("frameworks", "accelerate.py")


@pytest.mark.parametrize("content", ["def (", "\0", "import .x"])
def test_what_cannot_be_read_has_no_versions(folder: Path, content: str) -> None:
    (folder / "bad.py").write_text(content)
    assert machine(["bad.py", "nowhere.to.be.found", "missing.py", "a:"]) == machine([])


def written(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


LOOP = {
    "loop/__init__.py": "from .steps import one\n",
    "loop/steps.py": "from . import clips\nfrom ..loop.inner.deep import value\n",
    "loop/clips.py": "",
    "loop/unused.py": "",
    "loop/inner/deep.py": "def value():\n    from .. import late\n",
    "loop/late.py": "",
}


@pytest.mark.parametrize(
    ("target", "files", "found"),
    [
        pytest.param("mine.py", {"mine.py": "import loop\n"}, {"mine.py"}, id="a file"),
        pytest.param("mine:train", {"mine.py": "import loop.steps\n"}, {"mine.py"}, id="a module"),
        pytest.param(
            "sub/mine.py", {"sub/mine.py": "import beside\nfrom loop import steps\n", "sub/beside.py": "",
                            "beside.py": "", "sub/loop/__init__.py": "import loop.steps\n"} | {
                f"sub/{name}": text for name, text in LOOP.items()
            }, {"sub/mine.py", "sub/beside.py"}, id="next to the trainer",
        ),
        pytest.param(
            "package/mine.py", {"package/__init__.py": "import loop\n", "package/mine.py": "from .beside import x\n",
                                "package/beside.py": ""},
            {"package/__init__.py", "package/mine.py", "package/beside.py"}, id="a file in a package",
        ),
        pytest.param(
            "spaces.mine", {"spaces/mine.py": "from spaces.parts import shared\n", "spaces/parts/shared.py":
                            "import loop\n"}, {"spaces/mine.py", "spaces/parts/shared.py"}, id="namespace packages",
        ),
        pytest.param(
            "mine.py", {"mine.py": "import statistics, loop\n", "statistics.py": ""}, {"mine.py", "statistics.py"},
            id="the name of a module of Python's",
        ),
    ],
)  # fmt: skip
def test_all_files_of_the_user_that_are_run(folder: Path, target: str, files: dict[str, str], found: set[str]) -> None:
    """Files of packages, relative imports and imports in functions; nothing installed, and nothing else."""
    written(folder, LOOP | files)
    [names] = sources([target]).values()
    within = "sub/" if "sub/loop/late.py" in files else ""
    used = {f"{within}{name}" for name in LOOP if name != "loop/unused.py"}
    assert set(names) == found | used


def test_an_editable_install_is_the_users(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a folder on the path, or its own finder; installed copies are known by their version."""
    site, source = folder / "site-packages", folder / "source"
    written(site, {"installed.py": "import deeper\n", "deeper.py": ""})
    written(source, {"ours/__init__.py": "import rich, installed\n", "apart/__init__.py": "from . import part\n"})
    written(source, {"apart/part.py": ""})
    for name in ("ours", "apart", "installed"):
        written(site, {f"{name}-2.5.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 2.5\n"})
    monkeypatch.setattr("sys.path", [str(site), *sys.path])
    written(folder, {"trainer/mine.py": "import ours, apart\n"})

    class Finder:
        @staticmethod
        def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
            at = source / name / "__init__.py"
            return spec_from_file_location(name, at) if name in ("ours", "apart") else None

    monkeypatch.setattr("sys.meta_path", [*sys.meta_path, Finder])
    [names] = sources(["trainer/mine.py"]).values()
    assert set(names) == {
        "trainer/mine.py", "source/ours/__init__.py", "source/apart/__init__.py", "source/apart/part.py"
    }  # fmt: skip
    found = machine(["trainer/mine.py"])
    assert (found["ours"], found["installed"], found["rich"]) == ("2.5", "2.5", version("rich"))


def names(target):
    return sorted(str(file.relative_to(Path.cwd())) for file in imported(target).files)


@pytest.fixture
def helper(folder):
    Path("helper.py").touch()


@pytest.mark.usefixtures("helper")
@pytest.mark.parametrize(
    "statement",
    [
        "import helper",
        "helper = __import__('helper')",
        "import importlib\nhelper = importlib.import_module('helper')",
        "from importlib import import_module\nhelper = import_module('helper')",
    ],
)
def test_a_module_by_a_literal_name(statement):
    Path("loop.py").write_text(statement)
    assert names("loop.py") == ["helper.py", "loop.py"]


@pytest.mark.usefixtures("helper")
@pytest.mark.parametrize("name", ["name", "''", "'.'", "'a\\0b'", "'../helper'"])
def test_what_names_no_module_is_none(name):
    Path("loop.py").write_text(f"__import__({name})")
    assert names("loop.py") == ["loop.py"]


@pytest.mark.usefixtures("helper")
def test_a_module_that_only_all_names():
    Path("package").mkdir()
    Path("package/__init__.py").write_text("__all__ = ['part', 'x', 'a b', 1]\nx = 1\n")
    Path("package/part.py").write_text("import helper")
    Path("package/other.py").touch()
    Path("loop.py").write_text("from package import *")
    assert names("loop.py") == ["helper.py", "loop.py", "package/__init__.py", "package/part.py"]


@pytest.mark.usefixtures("helper")
@pytest.mark.parametrize("text", ["x = " + "1+" * 20_000 + "1", "x = " + "-" * 20_000 + "1"])
def test_a_module_that_is_nested_too_deeply_for_the_parser(text):
    Path("helper.py").write_text(text)
    Path("loop.py").write_text("import helper")
    assert names("loop.py") == ["helper.py", "loop.py"]
