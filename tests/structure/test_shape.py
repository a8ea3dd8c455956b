"""Files and functions are small enough to read, files large enough to be worth finding, and file names unique."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import conformance

PACKAGE = Path(conformance.__file__).parent
#: Fewer lines belong in the file where readers would look for them.
SHORTEST = 25
#: Lines of code in a function, without its docstring, comments and empty lines.
LONGEST = 60
PACKAGES = {folder.name for folder in PACKAGE.iterdir() if any(folder.rglob("*.py"))}


def files(package: str) -> list[Path]:
    """All files except `__init__.py`."""
    return [file for file in sorted((PACKAGE / package).rglob("*.py")) if file.stem != "__init__"]


def functions(file: Path) -> Iterator[tuple[str, int]]:
    """Each function with its lines of code."""
    lines = file.read_text(encoding="utf-8").splitlines()
    for node in ast.walk(ast.parse("\n".join(lines))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first, *rest = node.body
            begin = rest[0] if ast.get_docstring(node) and rest else first
            code = [line.strip() for line in lines[begin.lineno - 1 : node.end_lineno]]
            yield f"{file.name}: {node.name}", sum(bool(line) and not line.startswith("#") for line in code)


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_no_file_is_short(package):
    short = [file.name for file in files(package) if len(file.read_text(encoding="utf-8").splitlines()) < SHORTEST]
    assert short == []


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_no_function_is_long(package):
    assert [one for file in files(package) for one in functions(file) if one[1] > LONGEST] == []


def test_each_stem_is_used_once():
    """A reference trainer or a framework's adapter has its name in other packages, too."""
    stems = Counter(file.stem for package in PACKAGES - {"trainers", "frameworks"} for file in files(package))
    assert [stem for stem, count in stems.items() if count > 1] == []
