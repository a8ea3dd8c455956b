"""The imports between the files of a package, read from its source."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator
from pathlib import Path


def imports(package: Path) -> dict[str, set[str]]:
    """For each module below `package`, those that it imports: anywhere in the file, also only for types."""
    files = {_module(file, package): file for file in package.rglob("*.py")}
    return {name: set(_imported(name, file, files)) - {name} for name, file in files.items()}


def circles(graph: dict[str, set[str]]) -> list[set[str]]:
    """The sets of modules that import each other in a circle (Tarjan's strongly connected components)."""
    numbers: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[set[str]] = []

    def visit(node: str) -> None:
        numbers[node] = lowest[node] = len(numbers)
        stack.append(node)
        for other in graph[node]:
            if other not in numbers:
                visit(other)
                lowest[node] = min(lowest[node], lowest[other])
            elif other in stack:
                lowest[node] = min(lowest[node], numbers[other])
        if lowest[node] == numbers[node]:
            component = set(stack[stack.index(node) :])
            del stack[stack.index(node) :]
            if len(component) > 1:
                found.append(component)

    for node in graph:
        if node not in numbers:
            visit(node)
    return found


def room(module: str, names: tuple[str, ...]) -> str | None:
    """The longest of `names` that is `module` or contains it."""
    inside = [name for name in names if module == name or module.startswith(f"{name}.")]
    return max(inside, key=len, default=None)


def _module(file: Path, package: Path) -> str:
    parts = file.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imported(name: str, file: Path, files: dict[str, Path]) -> Iterator[str]:
    package = name if file.stem == "__init__" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in files)
        elif isinstance(node, ast.ImportFrom):
            module = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            for alias in node.names if module in files else ():
                submodule = f"{module}.{alias.name}"
                yield submodule if submodule in files else module
