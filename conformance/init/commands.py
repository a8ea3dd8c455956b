"""Replaces the command line that a script reads: an adapter has none."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from .source import Change, Source, every, keyword, last_name, made

_NO_OPTIONS = "no options: defaults are used"
_MADE_UP = "required options have placeholder values: put yours here"
_CALL = "CHECK: this reads the command line: call the function that trains instead, with your options"


def commands(source: Source) -> Iterator[Change]:
    """Changes the calls that read the command line: argparse gets options, others are left to the user."""
    tree = source.tree
    decorated = {node.name: [*_decorators(node)] for node in every(tree, ast.FunctionDef)}
    apps = {last_name(target) for target, call in made(tree) if last_name(call) == "Typer"}
    for call in every(tree, ast.Call):
        name = last_name(call)
        if name in ("parse_args", "parse_known_args") and not call.args and isinstance(call.func, ast.Attribute):
            given = [*_required(source)]
            why = f"{_MADE_UP if given else _NO_OPTIONS}; the script has: {source.of(call)}"
            yield Change(call, (f"{source.of(call.func)}([{', '.join(given)}])",), why)
        elif isinstance(call.func, ast.Name) and not call.args and not call.keywords:
            is_hydras = any(source.of(one.func) in ("hydra.main", "main") for one in decorated.get(name, ()))
            if is_hydras or name in apps or any(map(_is_command, decorated.get(name, ()))):
                yield Change(call, (), _CALL)
        elif name == "Fire":
            yield Change(call, (), _CALL)


def options(tree: ast.Module) -> set[str]:
    """The function parameters that a command line fills: those of click and Typer."""
    functions = (node for node in every(tree, ast.FunctionDef) if any(map(_is_command, _decorators(node))))
    return {one.arg for node in functions for one in node.args.args}


def _decorators(node: ast.FunctionDef) -> Iterator[ast.Call]:
    """The decorators that are called."""
    return (one for one in node.decorator_list if isinstance(one, ast.Call))


def _is_command(decorator: ast.Call) -> bool:
    return last_name(decorator) in ("command", "group")


def _required(source: Source) -> Iterator[str]:
    """The required options, each with a value of its type."""
    for call in every(source.tree, ast.Call):
        if last_name(call) != "add_argument" or not call.args:
            continue
        option = source.of(call.args[-1]).strip("\"'")
        number, default, kind = keyword(call, "nargs"), keyword(call, "default"), keyword(call, "type")
        is_optional = isinstance(number, ast.Constant) and number.value in ("?", "*")
        is_named = option.startswith("-")
        needs = keyword(call, "required") is not None if is_named else not (is_optional or default)
        value = '"1"' if kind is not None and last_name(kind) in ("int", "float") else '"x"'
        choices = keyword(call, "choices")
        if isinstance(choices, ast.List | ast.Tuple) and choices.elts:
            value = f"str({source.of(choices.elts[0])})"
        if needs:
            yield f'"{option}", {value}' if is_named else value
