"""Follows names in a file: where the value that a line uses is assigned, counted or restored."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from conformance.verdict.paths import call_of, files_of


class Source(NamedTuple):
    """The code of a file that an event names. folder: that of the trainer's file."""

    path: str
    folder: Path | None
    tree: ast.Module

    def around(self, line: int, *kinds: type[ast.AST]) -> ast.AST | None:
        """The innermost node of these kinds that has a line."""
        found = [one for one in ast.walk(self.tree) if isinstance(one, kinds) and _has(one, line)]
        return max(found, key=lambda one: getattr(one, "lineno", 0), default=None)

    def condition(self, line: int) -> ast.If | None:
        """The `if` whose body has a line, in its function; else the one around the only call of the function."""
        function = self.around(line, *_FUNCTIONS)
        call = call_of(self.path, function.name, self.folder) if isinstance(function, _FUNCTIONS) else None
        return self._if(line) or (None if call is None else self._if(call))

    def _if(self, line: int) -> ast.If | None:
        within = self.around(line, *_FUNCTIONS) or self.tree
        found = (
            one for one in ast.walk(within) if isinstance(one, ast.If) and any(_has(each, line) for each in one.body)
        )
        return max(found, key=lambda one: one.lineno, default=None)

    def flag(self, condition: ast.If) -> int | None:
        """The only line that computes the variable or attribute that an `if` tests."""
        test = condition.test.operand if isinstance(condition.test, ast.UnaryOp) else condition.test
        where: ast.AST | None = self.tree
        if isinstance(test, ast.Name):
            where = self.around(condition.lineno, *_FUNCTIONS)
        if where is None or not isinstance(test, ast.Name | ast.Attribute):
            return None
        return _only(
            value.lineno
            for target, value in _assigned(where)
            if _name(target) == _name(test) and not isinstance(value, ast.Constant)
        )

    def called(self, line: int) -> int | None:
        """The only line that assigns the variable that a line calls, in its function."""
        function = self.around(line, *_FUNCTIONS)
        names = {
            node.func.id
            for node in ast.walk(self.tree)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.lineno == line
        }
        assigned = _assigned(function) if function is not None else ()
        return _only(value.lineno for target, value in assigned if _name(target) in names)

    def caller(self, line: int) -> int | None:
        """The only call of a function that consists of a line without arithmetic."""
        function = self.around(line, *_FUNCTIONS)
        if not isinstance(function, _FUNCTIONS) or len(function.body) > 1 or _finds(function.body[0], ast.BinOp):
            return None
        calls = (one for one in ast.walk(self.tree) if isinstance(one, ast.Call) and _name(one.func) == function.name)
        # Other methods of this name, such as a loss's, are given something else.
        given = sum(one.arg != "self" for one in function.args.args)
        return _only(one.lineno for one in calls if len(one.args) == given)

    def divisor(self, line: int) -> int | None:
        """The only line that computes the attribute by which a line divides."""
        names = {
            _name(node.right)
            for node in ast.walk(self.tree)
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and node.lineno == line
            if isinstance(node.right, ast.Attribute)
        }
        assigned = [value for target, value in _assigned(self.tree) if _name(target) in names]
        # A setting that is only copied is correct.
        is_computed = len(names) == 1 and all(isinstance(value, ast.Call | ast.BinOp) for value in assigned)
        return _only(value.lineno for value in assigned) if is_computed else None

    def counter(self, line: int) -> int | None:
        """The only line that counts up by one, in the class that has a line."""
        return _only(one.lineno for one in _counts(self.around(line, ast.ClassDef)))

    def uncounted(self, line: int) -> int | None:
        """The first value of the only attribute in a line that its class counts, but nothing saves or restores."""
        within = self.around(line, ast.ClassDef)
        if within is None or any(_name(node) == "__dict__" for node in ast.walk(self.tree)):
            return None
        texts = {one.value for one in ast.walk(self.tree) if isinstance(one, ast.Constant)}
        used = {_name(node) for node in ast.walk(within) if isinstance(node, ast.Attribute) and node.lineno == line}
        names = {_name(one.target) for one in _counts(within)} & used - texts
        return _only(value.lineno for target, value in _assigned(self.tree) if _name(target) in names)

    def restored(self, line: int) -> int | None:
        """The only line that assigns an attribute from what a line loads, in its function."""
        function = self.around(line, *_FUNCTIONS)
        pairs = [*_assigned(function)] if function is not None else []
        loaded = {_name(target) for target, value in pairs if _has(value, line) and isinstance(target, ast.Name)}
        return _only(
            value.lineno
            for target, value in pairs
            if isinstance(target, ast.Attribute) and any(_name(node) in loaded for node in ast.walk(value))
        )


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def source(path: str, folder: Path | None) -> Source | None:
    """A file that events name; None if several match, or it is no longer Python's."""
    files = [*files_of(path, folder)]
    try:
        return Source(path, folder, ast.parse("".join(linecache.getlines(files[0])))) if len(files) == 1 else None
    except (SyntaxError, ValueError):
        return None


def _has(node: ast.AST, line: int) -> bool:
    first, last = getattr(node, "lineno", None), getattr(node, "end_lineno", None)
    return first is not None and last is not None and first <= line <= last


def _name(node: ast.AST) -> str | None:
    """The variable or the last attribute."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else None


def _assigned(within: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Each target of an assignment, with its value."""
    for node in ast.walk(within):
        if isinstance(node, ast.Assign):
            yield from ((target, node.value) for target in node.targets)


def _counts(within: ast.AST | None) -> list[ast.AugAssign]:
    return [
        node
        for node in (ast.walk(within) if within is not None else ())
        if isinstance(node, ast.AugAssign)
        and isinstance(node.op, ast.Add)
        and isinstance(node.value, ast.Constant)
        and node.value.value == 1
    ]


def _finds(within: ast.AST, kind: type[ast.AST]) -> bool:
    return any(isinstance(node, kind) for node in ast.walk(within))


def _only(found: Iterator[int]) -> int | None:
    lines = set(found)
    return lines.pop() if len(lines) == 1 else None
