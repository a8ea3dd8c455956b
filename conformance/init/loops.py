"""Analyses a script's loops: which train or iterate over its data, how long windows are, where schedules step."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property

from .source import Source, every, keyword, last_name

_COUNTS = ("range", "trange", "count")


class Loops:
    """The loops of a script."""

    def __init__(self, tree: ast.Module) -> None:
        self._tree = tree
        self._functions = [*every(tree, ast.FunctionDef)]
        self._calls = {one.name: _called(one) for one in self._functions}

    @cached_property
    def training(self) -> set[str]:
        """The functions that call `backward`, directly or not, and `backward` itself."""
        return _callers({"backward"}, self._calls)

    @cached_property
    def looping(self) -> set[str]:
        """The functions that iterate over the data, directly or not."""
        loop = {
            one.name
            for one in self._functions
            for node in every(one, ast.For)
            if not is_counted(node) and self.trains(node)
        }
        return _callers(loop, self._calls)

    @cached_property
    def over_data(self) -> set[ast.For]:
        """The innermost training loops over the data."""
        loops = {one for one in every(self._tree, ast.For) if self.trains(one) and not is_counted(one)}
        return {one for one in loops if not self.trains_in_a_loop(one)}

    def trains(self, node: ast.stmt) -> bool:
        return not _called(node).isdisjoint(self.training)

    def trains_in_a_loop(self, node: ast.For | ast.While) -> bool:
        """Whether a loop inside this one trains over the data, here or in a function that it calls."""
        calls = set[str]().union(*map(_called, node.body))
        within = [one for part in node.body for one in every(part, ast.For)]
        return bool(calls & self.looping) or any(self.trains(one) and not is_counted(one) for one in within)

    def in_epochs(self) -> set[ast.AST]:
        """What runs once per epoch: around the loops over the data, and in no loop that trains step by step."""
        around: list[ast.For | ast.While] = [*every(self._tree, ast.For), *every(self._tree, ast.While)]
        whole: list[ast.stmt] = [one for one in around if self.trains_in_a_loop(one)]
        whole += [one for one in self._functions if one.name in self.looping]
        steps = [one for one in around if one not in whole and self.trains(one)]
        return {one for node in whole for one in ast.walk(node)} - {one for node in steps for one in ast.walk(node)}


def is_counted(node: ast.For) -> bool:
    """Whether it iterates over a range, so not over the data."""
    return isinstance(node.iter, ast.Call) and last_name(node.iter) in _COUNTS


def _called(node: ast.AST) -> set[str]:
    return {last_name(one) for one in every(node, ast.Call)}


def _callers(functions: set[str], calls: Mapping[str, set[str]]) -> set[str]:
    """These functions and their callers. ``calls``: the names that each function calls."""
    found = set(functions)
    while more := {name for name, called in calls.items() if name not in found and called & found}:
        found |= more
    return found


def lengths(source: Source) -> Iterator[ast.expr]:
    """The expressions for a window's length: the batch number is taken modulo it, and the loss is divided by it."""
    remainders, divisors = list[ast.expr](), list[ast.expr]()
    for node in ast.walk(source.tree):
        if isinstance(node, ast.BinOp):
            remainders += [node.right] if isinstance(node.op, ast.Mod) else []
            divisors += [node.right] if isinstance(node.op, ast.Div) else []
        elif isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Div):
            divisors.append(node.value)
    both = {source.of(one) for one in remainders} & {source.of(one) for one in divisors}
    for one in [*remainders, *divisors]:
        if isinstance(one, ast.Constant) and _is_length(one) and source.of(one) in both:
            yield one
    for node in ast.walk(source.tree):
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        if isinstance(value, ast.Constant) and _is_length(value) and any(source.of(one) in both for one in targets):
            yield value


def shares(source: Source, is_length: Callable[[str], object]) -> Iterator[ast.stmt]:
    """Statements that divide a length over all ranks, or assert that it is a multiple of their number. ``is_length``:
    whether a name is such a length."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.FloorDiv):
            lengths_of: list[ast.expr] = [node.target]
        elif isinstance(node, ast.Assert):
            parts = (one for one in ast.walk(node.test) if isinstance(one, ast.BinOp) and isinstance(one.op, ast.Mod))
            lengths_of = [one.left for one in parts]
        else:
            continue
        if any(is_length(source.of(one)) for one in lengths_of):
            yield node


def _is_length(node: ast.Constant) -> bool:
    return type(node.value) is int and node.value > 1


_SCHEDULERS = re.compile(r"sched|plateau|^lr_?", re.IGNORECASE)


def steps_of_schedulers(tree: ast.Module) -> Iterator[tuple[ast.Call, ast.expr]]:
    """Each step of a scheduler, and the scheduler."""
    for node in every(tree, ast.Call):
        if isinstance(of := node.func, ast.Attribute) and of.attr == "step" and _SCHEDULERS.search(last_name(of.value)):
            yield node, of.value


def linked(source: Source) -> Mapping[str, str]:
    """The `Accelerator` that steps a schedule only with the optimizer, wherever the script steps it, by the names of
    the schedules that it prepares."""
    names, prepared = list[str](), set[str]()
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Assign) and last_name(node.value) == "Accelerator":
            by = keyword(node.value, "step_scheduler_with_optimizer") if isinstance(node.value, ast.Call) else None
            if not (isinstance(by, ast.Constant) and by.value is False):
                names.append(source.of(node.targets[0]))
        elif isinstance(node, ast.Call) and last_name(node) in ("prepare", "prepare_scheduler"):
            prepared |= {last_name(one) for one in node.args}
    return dict.fromkeys(prepared, names[0]) if names else {}
