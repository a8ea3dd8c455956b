"""Reading a declaration from source that cannot be imported, or need not be."""

from __future__ import annotations

import ast
import dataclasses
from pathlib import Path

from conformance.adapter.declaration import Declaration


def declaration_in(path: Path) -> Declaration | None:
    """The only declaration in the file, if it consists of literals; otherwise None.

    Its `name` defaults to the file's stem.
    """
    found = []
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        for decorator in node.decorator_list if isinstance(node, ast.FunctionDef) else []:
            if isinstance(decorator, ast.Call) and _last_name(decorator.func) == "trainer":
                found.append(decorator)
    if len(found) != 1:
        return None
    try:
        # A session is a function, and not part of the declaration.
        keywords = [keyword for keyword in found[0].keywords if keyword.arg != "session"]
        declares = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in keywords}
        declaration = Declaration.from_dict(declares)
    except ValueError:
        return None
    return dataclasses.replace(declaration, name=declaration.name or path.stem)


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
