"""Which functions and loops of a script train, and which go over its data."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import cached_property

from .source import last_name

_COUNTS = ("range", "trange", "count")


class Loops:
    """Of a script."""

    def __init__(self, tree: ast.Module) -> None:
        self._tree = tree
        self._functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        self._calls = {one.name: _called(one) for one in self._functions}

    @cached_property
    def training(self) -> set[str]:
        """The functions that go backward, or call one that does, and `backward` itself."""
        return _callers({"backward"}, self._calls)

    @cached_property
    def looping(self) -> set[str]:
        """The functions that go over the data, or call one that does."""
        loop = {
            one.name
            for one in self._functions
            for node in ast.walk(one)
            if isinstance(node, ast.For) and not is_counted(node) and self.trains(node)
        }
        return _callers(loop, self._calls)

    @cached_property
    def over_data(self) -> set[ast.For]:
        """Those over the data that train."""
        loops = {one for one in ast.walk(self._tree) if isinstance(one, ast.For) and self.trains(one)}
        return {one for one in loops if not is_counted(one) and not self.trains_in_a_loop(one)}

    def trains(self, node: ast.stmt) -> bool:
        return not _called(node).isdisjoint(self.training)

    def trains_in_a_loop(self, node: ast.For | ast.While) -> bool:
        """Whether a loop in this one goes over the data: one that trains, here or in a function that it calls."""
        calls = set[str]().union(*map(_called, node.body))
        within = [one for part in node.body for one in ast.walk(part) if isinstance(one, ast.For)]
        return bool(calls & self.looping) or any(self.trains(one) and not is_counted(one) for one in within)

    def in_epochs(self) -> set[ast.AST]:
        """What is done once an epoch: around the loops over the data, and in none that trains step by step."""
        around = [one for one in ast.walk(self._tree) if isinstance(one, ast.For | ast.While)]
        whole: list[ast.stmt] = [one for one in around if self.trains_in_a_loop(one)]
        whole += [one for one in self._functions if one.name in self.looping]
        steps = [one for one in around if one not in whole and self.trains(one)]
        return {one for node in whole for one in ast.walk(node)} - {one for node in steps for one in ast.walk(node)}


def is_counted(node: ast.For) -> bool:
    """Whether it goes over a range, and so not over the data."""
    return isinstance(node.iter, ast.Call) and last_name(node.iter) in _COUNTS


def _called(node: ast.AST) -> set[str]:
    return {last_name(one) for one in ast.walk(node) if isinstance(one, ast.Call)}


def _callers(functions: set[str], calls: Mapping[str, set[str]]) -> set[str]:
    """These, and what calls one of them. ``calls``: by the names of functions, what each calls."""
    found = set(functions)
    while more := {name for name, called in calls.items() if name not in found and called & found}:
        found |= more
    return found
