"""The files that a trainer imports, read without importing anything: `--resume` compares them."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.cli.surroundings import imported


def names(target):
    return sorted(str(file.relative_to(Path.cwd())) for file in imported(target).files)


@pytest.fixture(autouse=True)
def helper(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("helper.py").touch()


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


@pytest.mark.parametrize("name", ["name", "''", "'.'", "'a\\0b'", "'../helper'"])
def test_what_names_no_module_is_none(name):
    Path("loop.py").write_text(f"__import__({name})")
    assert names("loop.py") == ["loop.py"]


def test_a_module_that_only_all_names():
    Path("package").mkdir()
    Path("package/__init__.py").write_text("__all__ = ['part', 'x', 'a b', 1]\nx = 1\n")
    Path("package/part.py").write_text("import helper")
    Path("package/other.py").touch()
    Path("loop.py").write_text("from package import *")
    assert names("loop.py") == ["helper.py", "loop.py", "package/__init__.py", "package/part.py"]


@pytest.mark.parametrize("text", ["x = " + "1+" * 20_000 + "1", "x = " + "-" * 20_000 + "1"])
def test_a_module_that_is_nested_too_deeply_for_the_parser(text):
    Path("helper.py").write_text(text)
    Path("loop.py").write_text("import helper")
    assert names("loop.py") == ["helper.py", "loop.py"]
