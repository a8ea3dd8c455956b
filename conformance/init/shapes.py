"""Finds what a script reshapes before its model or its loss, and a loss that it writes out: the task has (m, n) inputs,
and (m, 1) outputs and targets."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from typing import TypeGuard

from .source import last_name

_SHAPES = re.compile(r"squeeze|unsqueeze|view|view_as|reshape|flatten|argmax|one_hot|long|permute|transpose")
#: Namespaces of functions whose first argument is reshaped.
_NAMESPACES = ("torch", "functional", "F")


def reshapes(outside: list[ast.AST], is_taker: Callable[[ast.Call], bool]) -> Iterator[tuple[ast.Call, ast.expr]]:
    """Each call that reshapes an input of the model or the loss, with its operand.

    ``outside``: the nodes outside of modules. ``is_taker``: whether a call is the model or the loss. A named input is
    searched in the innermost loop or function around the call: elsewhere the script makes its data.
    """
    scopes = [one for one in outside if isinstance(one, ast.For | ast.While | ast.FunctionDef)]
    for call in outside:
        if not isinstance(call, ast.Call) or not is_taker(call):
            continue
        given = [*call.args, *(one.value for one in call.keywords)]
        for value in given:
            yield from _along(value)
        around = [one for one in scopes if any(node is call for node in ast.walk(one))]
        for node in ast.walk(around[-1]) if around else ():
            if isinstance(node, ast.Assign):
                yield from _assigned(node.targets[0], node.value, {last_name(one) for one in given} - {""})


def is_reshaped(value: ast.expr) -> bool:
    """Whether any part of a value has other dimensions, wherever it is."""
    changed = {part for call, _ in _along(value) for part in (call, *_between(call))}
    return any(_reshapes(one) for one in ast.walk(value) if one not in changed)


def _assigned(target: ast.expr, value: ast.expr, names: set[str]) -> Iterator[tuple[ast.Call, ast.expr]]:
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        for one, its in zip(target.elts, value.elts, strict=False):
            yield from _assigned(one, its, names)
    elif isinstance(target, ast.Name) and target.id in names:
        yield from _along(value)


def _along(value: ast.expr) -> Iterator[tuple[ast.Call, ast.expr]]:
    """The reshaping calls in a chain of methods: `y.view(-1)` and `y` of `y.view(-1).to(device)`."""
    while isinstance(value, ast.Call):
        if _reshapes(value):
            inner = [*_between(value)][-1]
            if inner is value:
                return
            yield value, inner
            value = inner
        elif isinstance(value.func, ast.Attribute):
            value = value.func.value
        else:
            return


def _between(call: ast.expr) -> Iterator[ast.expr]:
    """A reshaping call and its nested operands, down to one that keeps its shape."""
    yield call
    while _reshapes(call):
        of = call.func.value if isinstance(call.func, ast.Attribute) else None
        if of is not None and last_name(of) not in _NAMESPACES:
            call = of
        elif call.args:
            call = call.args[0]
        else:
            return
        yield call


def _reshapes(node: ast.AST) -> TypeGuard[ast.Call]:
    return isinstance(node, ast.Call) and _SHAPES.fullmatch(last_name(node)) is not None


def is_mean_of_squares(node: ast.Call) -> bool:
    """Whether a call is `((output - target) ** 2).mean()`, also with `pow` and `torch.mean`."""
    if last_name(node) != "mean":
        return False
    squares = node.args[0] if node.args else node.func.value if isinstance(node.func, ast.Attribute) else None
    if isinstance(squares, ast.BinOp) and isinstance(squares.op, ast.Pow):
        base, power = squares.left, squares.right
    elif isinstance(squares, ast.Call) and last_name(squares) == "pow" and squares.args:
        power = squares.args[-1]
        of = squares.func.value if isinstance(squares.func, ast.Attribute) else None
        base = squares.args[0] if len(squares.args) > 1 else of or power
    else:
        return False
    is_difference = isinstance(base, ast.BinOp) and isinstance(base.op, ast.Sub)
    return is_difference and isinstance(power, ast.Constant) and power.value == 2
