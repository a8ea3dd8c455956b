"""Finds where a training script makes what a task provides, and replaces it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from .checks import Checks, outside_of_modules
from .commands import commands, options
from .loops import is_counted, lengths, linked, shares, steps_of_schedulers
from .replaced import CASTS, DATA, LOSSES, OPTIMIZERS, SCHEDULE, TASK, Calls, Found
from .shapes import reshapes
from .source import Change, Node, Source, every, last_name, made

_OPTIONS = re.compile(r"(args|config|cfg|hparams|params|options|opts?)$", re.IGNORECASE)
_ACCUMULATION = re.compile(r"accum", re.IGNORECASE)
_SCHEDULER = re.compile(r"sched", re.IGNORECASE)
_OPTIMIZER = re.compile(r"optim(izer)?(_\w+)?$|opt$", re.IGNORECASE)
_AMP = re.compile(r"(use_)?(amp|fp16|bf16|half)$", re.IGNORECASE)
#: By what the task provides: the name that scripts usually give it, for when nothing else shows it, and the comment.
_BY_NAME = {
    "optimizer": (_OPTIMIZER, "the task's optimizer"),
    "loader": (re.compile(r"(\w*_)?(data)?(loaders?|dl)$", re.IGNORECASE), "the task's data, pairs of x and y"),
    "loss": (re.compile(r"criterion|criteria|loss_(fn|func|function)$", re.IGNORECASE), "the task's loss"),
}
_PASSES = ("iter", "enumerate", "tqdm", "cycle", "prepare", "zip", "len")
_WRAPPERS = ("DistributedDataParallel", "DDP", "DataParallel", "compile", "prepare", "to", "cuda", "FSDP")
_WITH_OPTIMIZER = "only with the optimizer's steps, as an Accelerator does by default"
_WHOLE = "one pass over the task's loader is the whole training, all epochs"
_NOT_SAVED = "nothing is saved here"
#: Calls that are removed, with the reason.
_LEFT_OUT = {
    "set_epoch": "the task's loader orders its epochs itself: this call is not judged here",
    "set_device": "the task's device is used",
    "manual_seed": "nothing is random",
    "save_pretrained": _NOT_SAVED,
    "save_state": _NOT_SAVED,
    "run_line_magic": "of a notebook",
    "run_cell_magic": "of a notebook",
    "system": "of a notebook",
}
_MODELS = ("model", "net", "network", "module")


def spots(source: Source) -> Found:
    return _Finder(source).found


class _Finder(Calls):
    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self._trained = {*_MODELS, *self._stepped()} - {"self", ""}
        self._options = options(source.tree)
        self.visit(source.tree)
        self.found.changes += commands(source)
        self._find_windows()
        self._find_by_name()
        self._find_streams()
        self._schedule()
        losses = self._losses()
        self._reshaped(losses)
        checks = Checks(source, self._trained, losses)
        for node, text in checks.of(self.found.missing, self.found.changes):
            self.found.changes.append(Change(node, (), f"CHECK: {text}"))

    def _stepped(self) -> Iterator[str]:
        """The names of the modules whose parameters an optimizer gets."""
        for node in every(self._source.tree, ast.Call):
            for part in every(node.args[0], ast.Call) if last_name(node) in OPTIMIZERS and node.args else ():
                if last_name(part) in ("parameters", "named_parameters"):
                    yield last_name(part.func.value if isinstance(part.func, ast.Attribute) else part.func)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        if node.name in self._modules:  # the parts of a module are no models to train
            return
        for statement in node.body:
            # Other statements there run at import, when there is no task yet.
            if isinstance(statement, ast.FunctionDef | ast.ClassDef):
                self.visit(statement)

    def visit_For(self, node: ast.For) -> None:
        named, calls = last_name(node.target), {last_name(one) for one in every(node, ast.Call)}
        counted = is_counted(node)
        if isinstance(node.iter, ast.Name) and node.iter.id in self._trained:
            self._change(node.iter, "the layers of the task's model, if it has any", node.iter, ".children()")
        elif not self._loops.trains(node) or not isinstance(node.iter, ast.Call):
            pass
        elif named.startswith(("epoch", "ep", "_")) or (counted and self._loops.trains_in_a_loop(node)):
            self._change(node.iter, _WHOLE, "range(1)")
        elif counted and "next" in calls and not any(one != node for one in every(node, ast.For)):
            self._change(node.iter, "the task's number of micro-batches", f"range(len({TASK}.dataloader()))")
        elif counted and "next" in calls:
            self._change(node.iter, "the task's number of windows", f"range({TASK}.steps)")
        self.generic_visit(node)

    def visit_While(self, node: ast.While) -> None:
        if self._loops.trains_in_a_loop(node):
            header = ast.Pass(lineno=node.lineno, col_offset=node.col_offset)
            header.end_lineno, header.end_col_offset = node.test.end_lineno, node.test.end_col_offset
            self._change(header, _WHOLE, "for _ in range(1)")
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        if isinstance(node.targets[0], ast.Tuple):
            self._unpacked[node.value] = len(node.targets[0].elts)
        self._assigned(node.value, node.targets[0])
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        """Replaces `autocast() if use_amp else nullcontext()`: the task's does nothing in full precision."""
        for call in (node.body, node.orelse):
            if isinstance(call, ast.Call) and self._of_precision(
                call, last_name(call), self._source.of(call.func), node
            ):
                return
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self._assigned(node.value, node.target)
        self.generic_visit(node)

    def _assigned(self, value: ast.expr, target: ast.expr) -> None:
        name, of = last_name(target), self._source.of
        if isinstance(target, ast.Subscript) and of(target.value).endswith("environ"):
            if any(variable in of(target.slice) for variable in ("MASTER_", "RANK", "WORLD_SIZE")):
                self._change(value, "already set for each rank", of(target))
        elif name == "device" and "accelerator" not in of(value):
            is_text = not any(last_name(one) == "device" for one in every(value, ast.Call))
            self._change(value, "the task's device", f"str({TASK}.device)" if is_text else f"{TASK}.device")
        elif _AMP.match(name) and not isinstance(value, ast.Constant | ast.Attribute):
            self._change(value, CASTS, f'{TASK}.precision != "fp32"')
        elif name == "world_size" and "device_count" in of(value):
            self._change(value, "the task's number of ranks", f"{TASK}.world_size")
        elif _ACCUMULATION.search(name) and isinstance(value, ast.Constant) and type(value.value) is int:
            self._accumulates(value)
        elif _SCHEDULER.search(name) and isinstance(value, ast.Call) and last_name(value) == "instantiate":
            given = [
                one for one in (*value.args, *(one.value for one in value.keywords)) if _OPTIMIZER.match(last_name(one))
            ]
            for optimizer in given[:1]:
                self.found.scheduler = True
                self._change(value, SCHEDULE, f"{TASK}.scheduler(", optimizer, ")")
        elif name in self._trained and isinstance(call := _unwrapped(value), ast.Call) and self._makes_model(call):
            self._model(call)

    def _makes_model(self, call: ast.Call) -> bool:
        of_options = [
            one for one in call.args if isinstance(one, ast.Attribute) and _OPTIONS.search(last_name(one.value))
        ]
        takes_one = any(last_name(one) in self._trained for one in call.args if one not in of_options)
        others = ("load", "eval", "train", *_WRAPPERS, *self._modules, *self._loops.training)
        return last_name(call) not in others and not takes_one

    def visit_Name(self, node: ast.Name) -> None:
        """Replaces names that a command line fills."""
        if node.id in self._options and _ACCUMULATION.search(node.id) and isinstance(node.ctx, ast.Load):
            self._accumulates(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        is_option = isinstance(node.ctx, ast.Load) and _OPTIONS.search(last_name(node.value))
        if is_option and _ACCUMULATION.search(node.attr):
            self._accumulates(node)
        elif is_option and _AMP.match(node.attr):
            self._change(node, CASTS, f'({TASK}.precision != "fp32")')
        elif isinstance(node.ctx, ast.Load) and self._source.of(node) == "sys.argv":
            self._change(node, "no options are given", "[__file__]")
        self.generic_visit(node)

    def visit_keyword(self, node: ast.keyword) -> None:
        if node.arg is not None and _ACCUMULATION.search(node.arg) and not isinstance(node.value, ast.Name):
            self._accumulates(node.value)
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        call = node.value
        name = last_name(call) if isinstance(call, ast.Call) else ""
        is_saved = name == "save" and self._source.of(call).startswith(("torch.", "accelerator."))
        if name in ("exit", "quit") and isinstance(call, ast.Call) and call.args and isinstance(call.args[0], ast.Call):
            self._change(call, "the process continues", call.args[0])
            self.generic_visit(node)
        elif name in _LEFT_OUT or is_saved:
            self._change(node, _LEFT_OUT.get(name, _NOT_SAVED), "pass")
        else:
            self.generic_visit(node)

    def _losses(self) -> set[str]:
        """The names of the functions that compute the loss."""
        found = {"mse_loss", "cross_entropy", "nll_loss", "binary_cross_entropy_with_logits", "criterion", "loss_fn"}
        found |= {last_name(target) for target, call in made(self._source.tree) if last_name(call).endswith("Loss")}
        return found - {""}

    def _reshaped(self, losses: set[str]) -> None:
        def is_taker(call: ast.Call) -> bool:
            return last_name(call) in self._trained | losses or LOSSES.search(last_name(call)) is not None

        for call, whole in reshapes([*outside_of_modules(self._source.tree)], is_taker):
            if all(call is not one.node for one in self.found.changes):
                self._change(call, "inputs are (m, n), outputs and targets (m, 1)", whole)

    def _schedule(self) -> None:
        """Removes a schedule that is stepped after each epoch: here all epochs are one."""
        in_epochs, accelerators = self._loops.in_epochs(), linked(self._source)
        for call, scheduler in steps_of_schedulers(self._source.tree):
            if call in in_epochs:
                self.found.scheduler = False
                why = "CHECK: the schedule counts epochs, but here there is only one: it is not judged"
                self.found.changes.append(Change(call, ("None",), why))
            elif (accelerator := accelerators.get(last_name(scheduler))) is not None:
                self._change(call, _WITH_OPTIMIZER, call, f" if {accelerator}.sync_gradients else None")

    def visit_Dict(self, node: ast.Dict) -> None:
        keys = [one.value for one in node.keys if isinstance(one, ast.Constant)]
        if "params" in keys and len(keys) > 1:
            self._change(node, "with the task's settings", '{"params": ', node.values[keys.index("params")], "}")
        self.generic_visit(node)

    def _find_windows(self) -> None:
        """Finds windows whose length has its own name, or none."""
        changed = [one.node for one in self.found.changes]
        for node in lengths(self._source) if self.found.backward else ():
            if node not in changed:
                self._accumulates(node)
        for statement in shares(self._source, _ACCUMULATION.search):
            self._change(statement, "the task's values are per rank already", "pass")

    def _find_streams(self) -> None:
        """Finds batches that a function of the script returns one by one."""
        if self.found.loader:
            return
        calls = every(self._source.tree, ast.Call)
        taken = {last_name(one.args[0]) for one in calls if last_name(one) == "next" and one.args}
        for target, call in made(self._source.tree):
            if last_name(target) in taken:
                self.found.loader = True
                self._change(call, f"{DATA}, pairs of x and y", f"iter({TASK}.dataloader())")
        for loop in self._loops.over_data if not self.found.loader else ():
            if isinstance(loop.iter, ast.Call) and last_name(loop.iter) in self._functions:
                self.found.loader = True
                self._change(loop.iter, f"{DATA}, pairs of x and y", f"{TASK}.dataloader()")

    def _find_by_name(self) -> None:
        """Finds objects made elsewhere, by their names."""
        own = {one.name for one in every(self._source.tree, ast.FunctionDef)}
        for target, call in made(self._source.tree):
            targets = target.elts if isinstance(target, ast.Tuple) else [target]
            for what in self.found.missing:
                pattern, why = _BY_NAME.get(what, (re.compile("$^"), ""))
                is_own = what == "loader" and last_name(call) in {*own, *_PASSES}
                if all(pattern.match(last_name(one)) for one in targets) and not is_own:
                    self._by_name(what, call, why)

    def _by_name(self, what: str, call: ast.Call, why: str) -> None:
        if what == "loss":
            text: list[str | Node] = ["torch.nn.MSELoss()"]
        elif what == "loader":
            text = [self._as_many(call, f"{TASK}.dataloader()")]
        else:
            every = [*call.args, *(one.value for one in call.keywords)]
            given = [one for one in every if last_name(one) in ("parameters", *self._trained)]
            if not given:
                return
            is_model = last_name(given[0]) != "parameters"
            text = [f"{TASK}.optimizer(", given[0], ".parameters())" if is_model else ")"]
        setattr(self.found, what, True)
        self._change(call, why, *text)


def _unwrapped(value: ast.expr) -> ast.expr:
    """Removes wrappers: `Net()` of `Net().to(device)` and of `DDP(Net())`."""
    while isinstance(value, ast.Call) and last_name(value) in _WRAPPERS:
        if last_name(value) in ("to", "cuda") and isinstance(value.func, ast.Attribute):
            value = value.func.value
        elif value.args:
            value = value.args[0]
        else:
            break
    return value
