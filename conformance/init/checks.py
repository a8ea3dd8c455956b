"""Finds code of a script that does not fit the task's model and data, which the user has to check."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from .shapes import is_reshaped
from .source import Change, Node, Source, every, is_module, last_name, made

_CALL = (
    "the task's model takes only inputs (m, n) and returns predictions (m, 1): write `outputs = model(x)`, and the "
    "loss as `torch.nn.functional.mse_loss(outputs, y)`"
)
_RATE = (
    "the task sets learning rates: remove this; if the script steps a schedule this way, write `scheduler = "
    'TASK.scheduler(optimizer)`, step it after each optimizer step, and add `schedules=["step"]`'
)
#: Attributes of models besides those of their classes.
_OF_MODELS = re.compile(r"module$|training$|require_|configure_optimizers$|_")


class Checks:
    """``trained``: the names of models. ``losses``: the functions that compute the loss."""

    def __init__(self, source: Source, trained: set[str], losses: set[str]) -> None:
        self._source, self._trained, self._losses = source, trained, losses
        self._own = {*self._of_script(source.tree)}
        self._parents = {one: node for node in ast.walk(source.tree) for one in ast.iter_child_nodes(node)}

    def of(self, missing: list[str], changes: list[Change]) -> Iterator[tuple[Node, str]]:
        """Yields nodes to check, each with what to do. ``missing``: what was not found. ``changes``: what was."""
        for node in outside_of_modules(self._source.tree):
            if isinstance(node, ast.Call):
                yield from self._of_call(node)
            elif isinstance(node, ast.Attribute) and not isinstance(node.value, ast.Call):
                yield from self._of_attribute(node)
            elif isinstance(node, ast.For):
                yield from self._of_loop(node)
            elif isinstance(node, ast.Assign) and _is_rate(node.targets[0]):
                yield node, _RATE
        yield from self._of_several(changes)
        for going_back in self.backwards[:1]:
            if "loader" in missing:
                why = "no loader was found: take the batches, pairs of x and y, from `TASK.dataloader()` here"
                pairs = [*self._pairs()]
                yield from pairs or [(self._loop(going_back) or going_back, why)]
            if "loss" in missing:
                yield (
                    going_back,
                    "no loss was found: use `torch.nn.functional.mse_loss(outputs, y)`",
                )

    def _pairs(self) -> Iterator[tuple[Node, str]]:
        """Yields the calls that return a pair from the script's own function: `x, y = get_batch()`."""
        own = {one.name for one in every(self._source.tree, ast.FunctionDef)}
        for target, call in made(self._source.tree):
            if last_name(call) in own and isinstance(target, ast.Tuple) and len(target.elts) == 2:
                text = (
                    f"no loader was found: if these are x and y, write `{self._source.of(target)} = "
                    "next(batches, (None, None))` here, and `batches = iter(TASK.dataloader())` before the loop; stop "
                    "after `TASK.steps` windows"
                )
                yield call, text

    @property
    def backwards(self) -> list[ast.Call]:
        return [one for one in every(self._source.tree, ast.Call) if last_name(one) == "backward"]

    def _of_call(self, node: ast.Call) -> Iterator[tuple[Node, str]]:
        name, target = last_name(node), self._target(node)
        if name in self._trained and not isinstance(node.func, ast.Call):
            takes_one = len(node.args) == 1 and not isinstance(node.args[0], ast.Starred) and not node.keywords
            gives_parts = isinstance(target, ast.Name) and any(self._parts(target.id, node))
            if not takes_one or gives_parts or isinstance(target, ast.Tuple):
                yield node, _CALL
        elif name in self._losses and any(map(is_reshaped, node.args)):
            yield node, "outputs and targets are both (m, 1): pass them unchanged, or the loss broadcasts them"
        elif name == "LBFGS":
            yield node, "LBFGS itself is not judged: the task's optimizers are SGD, AdamW and Adagrad"

    def _of_attribute(self, node: ast.Attribute) -> Iterator[tuple[Node, str]]:
        from torch.nn.parallel import DistributedDataParallel

        is_known = _OF_MODELS.match(node.attr) or hasattr(DistributedDataParallel, node.attr)
        if last_name(node.value) in self._trained and not is_known and node.attr not in self._own:
            parent = self._parents.get(node)
            if isinstance(parent, ast.Attribute) and parent.attr in ("parameters", "named_parameters"):
                whole = f"`{self._source.of(node.value)}.{parent.attr}()`"
                yield node, f"the task's model has no `{node.attr}`: use {whole}, with one optimizer for all"
            else:
                yield node, f"the task's model has no `{node.attr}`: remove the code that uses it"

    def _of_script(self, tree: ast.Module) -> Iterator[str]:
        """The methods and attributes of the script's classes that are not modules, such as a trainer's."""
        for own in every(tree, ast.ClassDef):
            if not is_module(own):
                yield from (one.name for one in every(own, ast.FunctionDef))
                yield from (one.attr for one in every(own, ast.Attribute) if isinstance(one.ctx, ast.Store))

    def _of_loop(self, node: ast.For) -> Iterator[tuple[Node, str]]:
        """Checks a loop over batches, numbered or not."""
        is_numbered = isinstance(node.iter, ast.Call) and last_name(node.iter) == "enumerate"
        target = node.target.elts[-1] if is_numbered and isinstance(node.target, ast.Tuple) else node.target
        trains = any(one in self.backwards for one in every(node, ast.Call))
        if trains and isinstance(target, ast.Tuple | ast.List) and len(target.elts) != 2:
            yield target, "a batch of the task is a pair: inputs (m, n) and targets (m, 1)"

    def _of_several(self, changes: list[Change]) -> Iterator[tuple[Node, str]]:
        for what in ("model", "optimizer"):
            made = [one.node for one in changes if one.parts and str(one.parts[0]).startswith(f"TASK.{what}(")]
            named = {ast.dump(target): node for node in made if (target := self._target(node)) is not None}
            for node in [*named.values()][1:]:
                yield node, f"the task has only one {what}: remove the code that trains another"

    def _target(self, node: Node) -> ast.expr | None:
        """The name that a value is assigned to, also through `.to(device)` and the like."""
        parent = self._parents.get(node)
        while isinstance(parent, ast.Call | ast.Attribute):
            parent = self._parents.get(parent)
        return parent.targets[0] if isinstance(parent, ast.Assign) else None

    def _parts(self, name: str, call: ast.Call) -> Iterator[ast.expr]:
        """Yields accesses to parts of a model's output: `out["loss"]`, `out.logits`."""
        scope: ast.AST | None = call
        while scope in self._parents and not isinstance(scope, ast.FunctionDef):
            scope = self._parents[scope]
        for one in ast.walk(scope or self._source.tree):
            if isinstance(one, ast.Subscript) and last_name(one.value) == name and isinstance(one.slice, ast.Constant):
                if isinstance(one.slice.value, str):
                    yield one
            elif isinstance(one, ast.Attribute) and one.attr in ("loss", "logits") and last_name(one.value) == name:
                yield one

    def _loop(self, node: ast.AST) -> ast.For | ast.While | None:
        """The innermost loop around a node."""
        while (parent := self._parents.get(node)) is not None:
            if isinstance(parent, ast.For | ast.While):
                return parent
            node = parent
        return None


def outside_of_modules(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes outside classes of models, which the task's model replaces."""
    yield node
    for one in ast.iter_child_nodes(node):
        if not (isinstance(one, ast.ClassDef) and is_module(one)):
            yield from outside_of_modules(one)


def _is_rate(target: ast.expr) -> bool:
    """`group["lr"]`"""
    return isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant) and target.slice.value == "lr"


def keys_of_batches(tree: ast.Module, trains: set[ast.For]) -> list[str] | None:
    """The keys by which training loops read their batches; None for batches that are not mappings."""
    names = {last_name(loop.target.elts[-1] if isinstance(loop.target, ast.Tuple) else loop.target) for loop in trains}
    names |= {last_name(target) for target, call in made(tree) if last_name(call) == "next"}
    names.discard("")
    keys, is_mapping = dict[str, None](), False
    for node in ast.walk(tree):
        if not isinstance(node, ast.Subscript | ast.Attribute | ast.keyword) or last_name(node.value) not in names:
            continue
        if isinstance(node, ast.Subscript):
            key = node.slice.value if isinstance(node.slice, ast.Constant) else None
            keys |= {key: None} if isinstance(key, str) else {}
        else:  # `batch.items()` or `model(**batch)`
            is_mapping |= node.attr == "items" if isinstance(node, ast.Attribute) else node.arg is None
    return [*keys] if keys or is_mapping else None
