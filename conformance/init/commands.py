"""How the command line of a script is called where there is none: argparse, click, Typer, Fire, Hydra."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from .source import Change, Source, every, keyword, last_name, made

_NO_OPTIONS = "no options, so the defaults"
_MADE_UP = "the options that it requires, made up: put yours here"


def commands(source: Source) -> Iterator[Change]:
    """The calls that read the command line, with options in their place."""
    tree = source.tree
    decorated = {node.name: [*_decorators(node)] for node in every(tree, ast.FunctionDef)}
    apps = {last_name(target) for target, call in made(tree) if last_name(call) == "Typer"}
    for call in every(tree, ast.Call):
        name, function = last_name(call), source.of(call.func)
        if name in ("parse_args", "parse_known_args") and not call.args and isinstance(call.func, ast.Attribute):
            options = [*_required(source, "add_argument")]
            yield Change(call, (f"{function}([{', '.join(options)}])",), _with_what_it_has(source, call, options))
        elif name == "Fire" and not any(one.arg == "command" for one in call.keywords):
            given = ", ".join(map(source.of, call.args))
            yield Change(call, (f"{function}({', '.join(filter(None, [given, 'command=[]']))})",), _NO_OPTIONS)
        elif call.args or call.keywords or not isinstance(call.func, ast.Name):
            continue
        elif name in apps or any(_is_command(one) for one in decorated.get(name, ())):
            options = [*_required(source, "option"), *_required(source, "argument")]
            options += _parameters(tree) if name in apps else []
            text = f"{name}([{', '.join(options)}], standalone_mode=False)"
            yield Change(call, (text,), _with_what_it_has(source, call, options))
        elif main := [one for one in decorated.get(name, ()) if source.of(one.func) in ("hydra.main", "main")]:
            yield Change(
                call, (_composed(source, name, main[0]),), "the configuration that it reads, by Hydra's compose"
            )


def options(tree: ast.Module) -> set[str]:
    """The parameters of functions that a command line gives them."""
    return {one.arg for node in _commands(tree) for one in node.args.args}


def _commands(tree: ast.Module) -> Iterator[ast.FunctionDef]:
    """The functions that are commands of click or Typer."""
    return (node for node in every(tree, ast.FunctionDef) if any(map(_is_command, _decorators(node))))


def _parameters(tree: ast.Module) -> Iterator[str]:
    """A value for each parameter of Typer's commands that has no default."""
    for node in _commands(tree):
        for one in node.args.args[: len(node.args.args) - len(node.args.defaults)]:
            yield _value(one.annotation)


def _value(kind: ast.expr | None) -> str:
    """A value of a type, as text."""
    return '"1"' if kind is not None and last_name(kind) in ("int", "float") else '"x"'


def _decorators(node: ast.FunctionDef) -> Iterator[ast.Call]:
    """Those that are called."""
    return (one for one in node.decorator_list if isinstance(one, ast.Call))


def _is_command(decorator: ast.Call) -> bool:
    return last_name(decorator) in ("command", "group")


def _with_what_it_has(source: Source, call: ast.Call, options: Sequence[str]) -> str:
    return f"{_MADE_UP if options else _NO_OPTIONS}; the script has: {source.of(call)}"


def _composed(source: Source, name: str, main: ast.Call) -> str:
    folder, config = keyword(main, "config_path"), keyword(main, "config_name")
    path = f", config_path={source.of(folder)}" if folder is not None else ""
    named = f"config_name={source.of(config)}" if config is not None else "config_name=None"
    return f"hydra.initialize(version_base=None{path}); {name}.__wrapped__(hydra.compose({named}))"


def _required(source: Source, adds: str) -> Iterator[str]:
    """Options that a command line cannot do without, with a value of the type that each wants. ``adds``: the call that
    adds one: of argparse, or of click, in which an argument is required."""
    for call in every(source.tree, ast.Call):
        if last_name(call) != adds or not call.args:
            continue
        option = source.of(call.args[-1]).strip("\"'")
        number, default = keyword(call, "nargs"), keyword(call, "default")
        is_optional = isinstance(number, ast.Constant) and number.value in ("?", "*")
        is_named = option.startswith("-")
        needs = keyword(call, "required") is not None if is_named else not (is_optional or default)
        value, choices = _value(keyword(call, "type")), keyword(call, "choices")
        if isinstance(choices, ast.List | ast.Tuple) and choices.elts:
            value = f"str({source.of(choices.elts[0])})"
        if needs:
            yield f'"{option}", {value}' if is_named else value
