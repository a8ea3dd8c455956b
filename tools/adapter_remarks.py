"""Reads framework adapters' docstrings and comments: unsupported features with reasons, and non-default settings."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

FRAMEWORKS = Path(__file__).parents[1] / "conformance" / "frameworks"
PACKAGE, SHARED = "conformance.frameworks", "hugging_face"
_FOR_TOOLS = re.compile(r"# (?:fmt|noqa|type): [^#]*")


class Remark(NamedTuple):
    """A comment, and the line of code that it describes; empty if it describes the whole adapter."""

    text: str
    code: str = ""


def remarks(name: str) -> list[Remark]:
    """The remarks of a framework's adapter, and of the module that it shares with others."""
    source = (FRAMEWORKS / f"{name.replace('-', '_')}.py").read_text()
    tree = ast.parse(source)
    found = [Remark(" ".join((ast.get_docstring(tree) or "").split())), *comments(source)]
    modules = {node.module for node in tree.body if isinstance(node, ast.ImportFrom)}
    if f"{PACKAGE}.{SHARED}" in modules:
        found += comments((FRAMEWORKS / f"{SHARED}.py").read_text())
    return found


def comments(source: str) -> Iterator[Remark]:
    """Yields remarks: consecutive comment lines belong to the following line; one after code belongs to that line."""
    lines = source.splitlines()
    above: list[str] = []
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    columns = dict(token.start for token in tokens if token.type == tokenize.COMMENT)
    for number, line in enumerate(lines, 1):
        column = columns.get(number, len(line))
        code, comment = line[:column].strip(), _FOR_TOOLS.sub("", line[column:]).strip("# ")
        if not code and comment:
            above.append(comment)
            continue
        if above and code:
            yield Remark(" ".join(above), "" if code.startswith("@") else code)
            above.clear()
        if comment:
            yield Remark(comment, code)
