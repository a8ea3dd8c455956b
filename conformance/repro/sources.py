"""Python source as top-level statements, from which a script takes those that it needs.

Text is copied, with its comments, and never printed from a syntax tree.
"""

from __future__ import annotations

import ast
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeAlias

PACKAGE = __name__.partition(".")[0]


class CannotCopy(Exception):
    """Why a source cannot be part of a script: one line."""


@dataclass(frozen=True)
class Imported:
    """What a name refers to: ``module``, or ``attribute`` of it."""

    module: str
    attribute: str | None


@dataclass(frozen=True)
class Source:
    """A Python file. ``text`` is UTF-8."""

    name: str
    text: str

    @classmethod
    def of(cls, path: Path) -> Source:
        """Raises CannotCopy."""
        try:
            return cls(str(path), path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise CannotCopy(f"{path} cannot be read: {error}") from error

    @cached_property
    def tree(self) -> ast.Module:
        try:
            return ast.parse(self.text)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise CannotCopy(f"{self.name} cannot be parsed: {str(error) or type(error).__name__}") from error

    @cached_property
    def definitions(self) -> dict[str, ast.stmt]:
        """The top-level statements that define a function, a class or a variable, by its name."""
        return {name: node for node in self.tree.body for name in _defined(node)}

    @cached_property
    def imports(self) -> dict[str, list[Imported]]:
        """The names that top-level imports bind. `import a.b` and `import a.c` bind one name."""
        found: dict[str, list[Imported]] = {}
        for node in self.tree.body:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    bound = alias.asname or alias.name.partition(".")[0]
                    found.setdefault(bound, []).append(_plain(alias))
            elif isinstance(node, ast.ImportFrom) and node.module != "__future__":
                module = "." * node.level + (node.module or "")
                for alias in node.names:
                    found.setdefault(alias.asname or alias.name, []).append(Imported(module, alias.name))
        return found

    @cached_property
    def others(self) -> list[ast.stmt]:
        """Other top-level statements, without those that a script omits: the docstring, and code that runs only if the
        file is the program."""
        known = {id(node) for node in self.definitions.values()}
        rest = [node for node in self.tree.body if id(node) not in known and not _is_left_out(node)]
        return [node for node in rest if not isinstance(node, ast.Import | ast.ImportFrom)]

    @property
    def is_annotated_late(self) -> bool:
        """Whether its annotations are never evaluated."""
        return any(isinstance(node, ast.ImportFrom) and node.module == "__future__" for node in self.tree.body)

    def copied(self, node: ast.stmt, instead: Mapping[str, str], without: frozenset[str] = frozenset()) -> str:
        """The text of a statement with the comments above it; ``instead``: replacements of expressions; ``without``:
        names of decorators to omit."""
        lines = [line.encode() for line in self.text.splitlines(keepends=True)]
        for start, end, new in sorted(_replaced(node, instead), reverse=True):
            (row, column), (last, stop) = start, end
            lines[row] = lines[row][:column] + new.encode() + lines[last][stop:]
            lines[row + 1 : last + 1] = [b""] * (last - row)
        decorators: list[ast.expr] = getattr(node, "decorator_list", [])
        first = min([node.lineno, *(one.lineno for one in decorators)]) - 1
        dropped = {
            row
            for one in decorators
            if decorator_name(one) in without
            for row in range(one.lineno - 1, one.end_lineno or 0)
        }
        while first and lines[first - 1].startswith(b"#"):
            first -= 1
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name in instead:
            names = f" {node.name}".encode(), f" {instead[node.name]}".encode()
            lines[node.lineno - 1] = lines[node.lineno - 1].replace(*names, 1)
        kept = [lines[row] for row in range(first, node.end_lineno or 0) if row not in dropped]
        return b"".join(kept).decode().rstrip()


def names_in(node: ast.AST, without: frozenset[str] = frozenset(), absent: Container[str] = ()) -> Iterator[str]:
    """The names that a statement uses, except in decorators of the names ``without`` and in ``absent`` expressions."""
    left_out = [one for one in getattr(node, "decorator_list", []) if decorator_name(one) in without]
    if isinstance(node, ast.Name | ast.Attribute) and ast.unparse(node) in absent:
        return
    if isinstance(node, ast.Name):
        yield node.id
    elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
        # A quoted annotation.
        yield node.value
    for child in ast.iter_child_nodes(node):
        if child not in left_out:
            yield from names_in(child, absent=absent)


def attributes_in(node: ast.AST) -> set[str]:
    """The attributes that a statement uses, of any object."""
    return {inner.attr for inner in ast.walk(node) if isinstance(inner, ast.Attribute)}


def decorator_name(node: ast.expr) -> str:
    """The decorator's name: ``trainer`` for ``@trainer(...)`` and ``@conformance.trainer``."""
    return ast.unparse(node.func if isinstance(node, ast.Call) else node).removeprefix(f"{PACKAGE}.")


#: The text that replaces the source from one (row, column) to another.
Edit: TypeAlias = tuple[tuple[int, int], tuple[int, int], str]


def _replaced(node: ast.AST, instead: Mapping[str, str]) -> Iterator[Edit]:
    """Yields the replacements, none inside another."""
    if isinstance(node, ast.Name | ast.Attribute) and (text := ast.unparse(node)) in instead:
        yield (node.lineno - 1, node.col_offset), _end(node), instead[text]
        return
    for child in ast.iter_child_nodes(node):
        yield from _replaced(child, instead)


def _end(node: ast.expr | ast.arg) -> tuple[int, int]:
    return (node.end_lineno or node.lineno) - 1, node.end_col_offset or 0


def _plain(alias: ast.alias) -> Imported:
    """The import of an alias: `import a.b as c` is `from a import b as c`."""
    package, _, last = alias.name.rpartition(".")
    return Imported(package, last) if alias.asname and package else Imported(alias.name, None)


def _defined(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for target in targets:
            bound = target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
            yield from (one.id for one in bound if isinstance(one, ast.Name))


def _is_left_out(node: ast.stmt) -> bool:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return True
    return isinstance(node, ast.If) and ast.unparse(node.test) in (
        "__name__ == '__main__'",
        "TYPE_CHECKING",
        "typing.TYPE_CHECKING",
    )
