"""The adapter for a training script: a copy of it, in which the task hands out what the script makes."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path

from .replaced import TASK, Found
from .source import Change, Source, every, last_name
from .spots import spots

_HEAD = '''"""Shows `conformance` how {script} trains: a copy of it, made by `conformance init`.

Each line below a comment that begins with "# conformance:" was changed, so that the task hands out what the script
makes: the model, the optimizer, the data and the loss. Look at each of them, remove what has nothing to do with the
training, and see whether it works:

    conformance smoke {adapter}
"""

'''
_FUNCTIONAL = ("grad", "value_and_grad", "functional_call", "vjp", "jacrev")
_DECLARE = "declare what the script can do, and nothing else: what is not declared is not judged"


class NoScript(Exception):
    """A script that no adapter can be made of; `str()` is one line."""


def from_scratch() -> str:
    return Path(__file__).with_name("scratch.py").read_text(encoding="utf-8")


def from_script(script: Path, adapter: Path) -> tuple[str, Found]:
    """The text of the adapter, which will be the file `adapter`, and what was found in the script.

    Raises NoScript.
    """
    source = _read(script)
    found = spots(source)
    if not (found.backward or (found.optimizer and not _framework(source.tree))):
        raise NoScript(f"{script}: {_why_not(source.tree)}")
    first, kept, moved = [], [], []
    end = 0
    body = source.tree.body
    for node in body:
        begin, end = end + 1, node.end_lineno or node.lineno
        if node.lineno < begin:
            continue  # on the line of another one
        if _is_docstring(node, body):
            continue
        is_changed = any(begin <= change.node.lineno <= end for change in found.changes)
        if isinstance(node, ast.ImportFrom) and node.module == "__future__":
            first.append(source.changed([], begin, end + 1))
        elif _is_main(node):
            moved.append(_inside(source, node, found))
        elif _makes_decorator(node, source.tree) or (
            _is_definition(node) and not ((moved or is_changed) and isinstance(node, ast.Assign | ast.AnnAssign))
        ):
            kept.append(source.changed(found.changes, begin, end + 1))
        else:
            moved.append(source.changed([*found.changes, *_without_type(node)], begin, end + 1, indent="    "))
    head = _HEAD.format(script=script.name, adapter=adapter.name)
    texts = [head, *first, "from conformance import Task, trainer\n\n", *kept, *_entry(source.tree, found)]
    return "".join(texts) + "".join(
        moved or ["    # conformance: CHECK: call the training of the script here\n"]
    ), found


def _why_not(tree: ast.Module) -> str:
    if (name := _framework(tree)) is None:
        if any(last_name(one) in _FUNCTIONAL for one in every(tree, ast.Call)):
            return (
                "it computes gradients by functions and steps by hand, which a copy of it cannot show: have a function "
                "train `task.model()`, and report its weights after each window with `task.report` (docs/adapter.md)"
            )
        return "nothing in it makes an optimizer or goes backward; name the file that trains"
    return (
        f"the training loop is that of {name}, which has an adapter here: `conformance run {name}` judges it, and "
        f"conformance/frameworks/{name}.py is one to copy for settings of your own"
    )


def _framework(tree: ast.Module) -> str | None:
    """A framework that a script imports and that has an adapter here."""
    imported = [one.name for node in every(tree, ast.Import) for one in node.names]
    imported += [node.module or "" for node in every(tree, ast.ImportFrom)]
    roots = (one.partition(".")[0].replace("pytorch_lightning", "lightning") for one in imported)
    adapters = {one.stem for one in Path(__file__).parents[1].joinpath("frameworks").glob("[a-z]*.py")}
    return next((one for one in roots if one in adapters), None)


def _read(script: Path) -> Source:
    try:
        return Source(script.read_text(encoding="utf-8"))
    except OSError as error:
        raise NoScript(f"cannot read {script}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise NoScript(f"{script}: this is no Python script, as it is no text in UTF-8") from error
    except SyntaxError as error:
        raise NoScript(f"{script}:{error.lineno}: {type(error).__name__}: {error.msg}") from error
    except (ValueError, RecursionError) as error:
        raise NoScript(f"{script}: this is no Python script: {error}") from error


def _is_docstring(node: ast.stmt, body: list[ast.stmt]) -> bool:
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    return is_text and node is body[0]


def _is_main(node: ast.stmt) -> bool:
    """`if __name__ == "__main__":`"""
    return isinstance(node, ast.If) and any(one.id == "__name__" for one in every(node.test, ast.Name))


def _is_definition(node: ast.stmt) -> bool:
    """What is harmless where the file is imported: imports, functions, classes and constants."""
    if isinstance(node, ast.Try | ast.If):
        return all(map(_is_definition, (one for one in ast.iter_child_nodes(node) if isinstance(one, ast.stmt))))
    if isinstance(node, ast.Assign | ast.AnnAssign):
        return node.value is None or not any(every(node.value, ast.Call))
    return isinstance(
        node, ast.Import | ast.ImportFrom | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Pass
    )


def _makes_decorator(node: ast.stmt, tree: ast.Module) -> bool:
    """Whether a function needs at import what a statement makes: `app = typer.Typer()`, for `@app.command()`."""
    functions: list[ast.FunctionDef | ast.ClassDef] = [*every(tree, ast.FunctionDef), *every(tree, ast.ClassDef)]
    needed = {name.id for one in functions for made in one.decorator_list for name in every(made, ast.Name)}
    return isinstance(node, ast.Assign) and any(last_name(one) in needed for one in node.targets)


def _without_type(node: ast.stmt) -> Iterator[Change]:
    """A name that is global in a function can have no type there."""
    if isinstance(node, ast.AnnAssign) and node.value is not None:
        yield Change(node, (node.target, " = ", node.value), "without its type, as it stands in a function")


def _inside(source: Source, node: ast.stmt, found: Found) -> str:
    """The body of a compound statement, as the body of a function."""
    assert isinstance(node, ast.If)
    begin, end = node.body[0].lineno, node.body[-1].end_lineno or node.lineno
    if begin == node.lineno:  # on the line of the `if`
        return "".join(f"    {source.of(one)}\n" for one in node.body)
    text = source.changed(found.changes, begin, end + 1)
    return text if node.body[0].col_offset == 4 else textwrap.indent(textwrap.dedent(text), "    ")


def _entry(tree: ast.Module, found: Found) -> Iterator[str]:
    """The function that is judged, up to its body."""
    yield f"\n\n# conformance: {_DECLARE}\n"
    for name in found.missing:
        if name in ("model", "optimizer"):
            yield f"# conformance: CHECK: no {name} was found that the script makes; it must be the one of the task\n"
    arguments = "".join(f"    {name}={list(values)!r},\n".replace("'", '"') for name, values in _declared(found))
    yield f"@trainer(\n{arguments})\ndef conform(task: Task) -> None:\n"
    yield f"    global {', '.join(dict.fromkeys([TASK, *_shared(tree)]))}\n    {TASK} = task\n"


def _declared(found: Found) -> Iterator[tuple[str, Iterable[str]]]:
    yield "backends", _backends(found)
    yield "precisions", ("fp32", *(["bf16"] if found.autocast else []), *(["fp16"] if found.scaler else []))
    yield "layouts", ("batched", *(["accumulated"] if found.accumulates else []))
    yield "clips", dict.fromkeys(found.clips)
    yield "schedules", ("step",) if found.scheduler else ()
    if found.accelerate:
        yield "requires", ("accelerate",)


def _backends(found: Found) -> tuple[str, ...]:
    if found.fsdp:
        return ("fsdp2",)
    return ("single", "ddp") if found.accelerate else ("ddp",) if found.ddp else ("single",)


def _shared(tree: ast.Module) -> Iterator[str]:
    """The names that the moved statements set, and that functions read or other statements set, too: they were the
    script's globals."""
    kept = [node for node in tree.body if _is_definition(node)]
    known = {
        one.id
        for node in kept
        for one in every(node, ast.Name)
        if isinstance(one.ctx, ast.Load) or not isinstance(node, ast.FunctionDef | ast.ClassDef)
    }
    for node in tree.body:
        if _is_main(node) or isinstance(node, ast.Assign | ast.AnnAssign) or node not in kept:
            for one in _of_module(node):
                if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store) and one.id in known:
                    yield one.id


def _of_module(node: ast.AST) -> Iterator[ast.AST]:
    """What a statement of a module consists of, without the insides of functions and classes."""
    yield node
    for one in ast.iter_child_nodes(node):
        if not isinstance(one, ast.FunctionDef | ast.ClassDef | ast.Lambda):
            yield from _of_module(one)
