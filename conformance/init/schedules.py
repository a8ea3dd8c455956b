"""Where a script steps its schedules, and whether Accelerate steps them with the optimizer."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping

from .source import Source, keyword, last_name

_SCHEDULERS = re.compile(r"sched|plateau|^lr_?", re.IGNORECASE)


def steps_of_schedulers(tree: ast.Module) -> Iterator[tuple[ast.Call, ast.expr]]:
    """Each step, and what is stepped."""
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(of := node.func, ast.Attribute) and of.attr == "step"):
            continue
        if _SCHEDULERS.search(last_name(of.value)):
            yield node, of.value


def linked(source: Source) -> Mapping[str, str]:
    """The `Accelerator` that steps a schedule with the optimizer alone, wherever the script steps it, by the names of
    what it prepares."""
    names, prepared = list[str](), set[str]()
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Assign) and last_name(node.value) == "Accelerator":
            by = keyword(node.value, "step_scheduler_with_optimizer") if isinstance(node.value, ast.Call) else None
            if not (isinstance(by, ast.Constant) and by.value is False):
                names.append(source.of(node.targets[0]))
        elif isinstance(node, ast.Call) and last_name(node) in ("prepare", "prepare_scheduler"):
            prepared |= {last_name(one) for one in node.args}
    return dict.fromkeys(prepared, names[0]) if names else {}
