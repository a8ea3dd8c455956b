"""How many micro-batches a script has in a window, where no name says so."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from .source import Source


def lengths(source: Source) -> Iterator[ast.expr]:
    """The numbers that are a window's length: what the number of a batch is divided by, for the remainder, and the loss
    is divided by, too."""
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
    """Where a length of all ranks is shared out over them, or is held to be a multiple of their number. ``is_length``:
    whether a name says that it is one."""
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
