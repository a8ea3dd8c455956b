"""A script's text, and changes to it at the positions of `ast` nodes."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import TypeAlias, TypeVar

Node: TypeAlias = ast.expr | ast.stmt
N = TypeVar("N", bound=ast.AST)


def every(node: ast.AST, kind: type[N]) -> Iterator[N]:
    """All nodes of a kind in this node."""
    return (one for one in ast.walk(node) if isinstance(one, kind))


def made(tree: ast.AST) -> Iterator[tuple[ast.expr, ast.Call]]:
    """Each assignment from a call: target and call, `y` and `f(x)` of `y = f(x)`."""
    return ((node.targets[0], node.value) for node in every(tree, ast.Assign) if isinstance(node.value, ast.Call))


def last_name(node: ast.AST) -> str:
    """`c` of `a.b.c`, of `a.b.c()` and of `c`."""
    if isinstance(node, ast.Call):
        return last_name(node.func)
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def keyword(node: ast.Call, name: str) -> ast.expr | None:
    """The value of a keyword argument, or None."""
    return next((one.value for one in node.keywords if one.arg == name), None)


def is_module(node: ast.ClassDef) -> bool:
    """Whether a class is a torch module, such as a model, by the names of its bases."""
    return any("Module" in last_name(base) for base in node.bases)


@dataclass(frozen=True)
class Change:
    """Replaces `node` by `parts`: texts, and nodes inside it, which may have changes themselves.

    why: the comment above the statement.
    """

    node: Node
    parts: tuple[str | Node, ...]
    why: str


class Source:
    """A parsed script.

    Raises SyntaxError, ValueError.
    """

    def __init__(self, text: str) -> None:
        self.tree = ast.parse(text)
        self._bytes = text.encode()
        self._lines = self._bytes.splitlines(keepends=True)
        # Columns of `ast` count bytes of UTF-8; its lines start at 1.
        self._offsets = [0, *accumulate(map(len, self._lines))]

    def of(self, node: Node) -> str:
        """The text of a node."""
        return self._bytes[slice(*self._span(node))].decode()

    def changed(self, changes: Sequence[Change], begin: int, end: int, indent: str = "") -> str:
        """The lines from `begin` to before `end` with these changes, indented. Of nested changes the outer one is made,
        and the inner one only in parts that the outer one keeps."""
        first, last = self._offsets[begin - 1], self._offsets[min(end, len(self._offsets)) - 1]
        inserted = [(offset, offset, text) for offset, text in self._comments(changes, indent).items()]
        for number in range(begin, min(end, len(self._lines) + 1)) if indent else ():
            if number not in self._within_texts and self._lines[number - 1].strip():
                inserted.append((self._offsets[number - 1], self._offsets[number - 1], indent))
        found, at = list[str](), first
        # At the same offset comments come first, then indentation: sorting is stable.
        for start, stop, text in sorted([*inserted, *self._edits(changes)], key=lambda edit: edit[0]):
            if first <= start < last and at <= start:
                found += [self._bytes[at:start].decode(), text]
                at = stop
        return "".join([*found, self._bytes[at:last].decode()])

    def _edits(self, changes: Sequence[Change]) -> list[tuple[int, int, str]]:
        """The replaced ranges between parts that changes keep: start, end and new text."""
        found = list[tuple[int, int, str]]()
        for change in sorted(changes, key=lambda one: (self._span(one.node)[0], -self._span(one.node)[1])):
            at, end = self._span(change.node)
            if not change.parts or any(start <= at and end <= stop for start, stop, _ in found):
                continue
            text = ""
            for part in change.parts:
                if isinstance(part, str):
                    text += part
                else:
                    start, stop = self._span(part)
                    found.append((at, start, text))
                    at, text = stop, ""
            found.append((at, end, text))
        return found

    def _comments(self, changes: Sequence[Change], indent: str) -> dict[int, str]:
        """The comments to insert, by the offset of the statement's line."""
        starts = self._starts
        found: dict[int, dict[str, None]] = {}
        for change in changes:
            # Inside an expression or a string, a comment would break it.
            number = starts.get(change.node.lineno, change.node.lineno)
            while number in self._within_texts:
                number -= 1
            found.setdefault(number, {})[change.why] = None
        above = {}
        for number, comments in found.items():
            line = self._lines[number - 1].decode()
            margin = indent + line[: len(line) - len(line.lstrip())]
            above[self._offsets[number - 1]] = "".join(f"{margin}# conformance: {one}\n" for one in comments)
        return above

    @cached_property
    def _within_texts(self) -> set[int]:
        """The lines that begin inside a string: indenting them would change it."""
        inside: set[int] = set()
        for node in ast.walk(self.tree):
            if isinstance(node, ast.JoinedStr) or (
                isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
            ):
                inside.update(range(node.lineno + 1, (node.end_lineno or node.lineno) + 1))
        return inside

    @cached_property
    def _starts(self) -> dict[int, int]:
        """The first line of the innermost statement of each line, where a compound statement excludes its body."""
        found: dict[int, int] = {}
        for node in every(self.tree, ast.stmt):
            body = getattr(node, "body", None)
            last = body[0].lineno - 1 if body else node.end_lineno or node.lineno
            for number in range(node.lineno, max(last, node.lineno) + 1):
                found[number] = max(found.get(number, 0), node.lineno)
        return found

    def _span(self, node: Node) -> tuple[int, int]:
        end_line, end_column = node.end_lineno or node.lineno, node.end_col_offset or node.col_offset
        return self._offsets[node.lineno - 1] + node.col_offset, self._offsets[end_line - 1] + end_column
