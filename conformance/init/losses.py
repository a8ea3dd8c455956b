"""The task's loss where a script writes it out."""

from __future__ import annotations

import ast

from .source import last_name


def is_mean_of_squares(node: ast.Call) -> bool:
    """`((output - target) ** 2).mean()`, also by `pow` and by `torch.mean`."""
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
