"""Where a training script makes what a task hands out, and what stands there instead."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from .source import Change, Node, Source

#: The name under which the adapter keeps the task.
TASK = "TASK"

_OPTIMIZERS = ("SGD", "Adam", "AdamW", "Adagrad", "Adadelta", "Adamax", "NAdam", "RAdam", "RMSprop", "Adafactor")
_LOSSES = re.compile(r"(cross_entropy|nll_loss|mse_loss|l1_loss|binary_cross_entropy\w*|smooth_l1_loss|huber_loss)$")
_OF_A_RANK = re.compile(r"rank|gpu", re.IGNORECASE)
_OPTIONS = re.compile(r"(args|config|cfg|hparams|params|options|opts?)$", re.IGNORECASE)
_ACCUMULATION = re.compile(r"accum", re.IGNORECASE)
_WRAPPERS = ("DistributedDataParallel", "DDP", "DataParallel", "compile", "prepare", "to", "cuda", "FSDP")
_NOT_SAVED = "nothing is saved here"
#: Calls for their effect alone.
_LEFT_OUT = {
    "set_epoch": "the task's loader orders its epochs by itself: this call is not judged here",
    "set_device": "the device of the task is used",
    "manual_seed": "nothing is drawn",
    "save_pretrained": _NOT_SAVED,
    "save_state": _NOT_SAVED,
}
_FOR_ACCELERATE = {"cpu": f'{TASK}.device.type == "cpu"', "step_scheduler_with_optimizer": "False"}
_MODELS = ("model", "net", "network", "module")


@dataclass
class Found:
    """What is to be changed in a script, and what it shows that it can do.

    Attributes:
        model: whether the spot of each of these was found; so optimizer, loader, loss.
        backward: whether the script goes backward, which is its training loop.
    """

    changes: list[Change] = field(default_factory=list)
    model: bool = False
    optimizer: bool = False
    loader: bool = False
    loss: bool = False
    backward: bool = False
    ddp: bool = False
    accelerate: bool = False
    autocast: bool = False
    scaler: bool = False
    scheduler: bool = False
    accumulates: bool = False
    clips: list[str] = field(default_factory=list)

    @property
    def missing(self) -> list[str]:
        """What the task hands out and whose spot was not found."""
        return [name for name in ("model", "optimizer", "loader", "loss") if not getattr(self, name)]


def spots(source: Source) -> Found:
    return _Finder(source).found


def last_name(node: ast.AST) -> str:
    """`c` of `a.b.c`, of `a.b.c()` and of `c`."""
    if isinstance(node, ast.Call):
        return last_name(node.func)
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


class _Finder(ast.NodeVisitor):
    def __init__(self, source: Source) -> None:
        self.found, self._source = Found(), source
        self._modules = {
            node.name
            for node in ast.walk(source.tree)
            if isinstance(node, ast.ClassDef) and any("Module" in last_name(base) for base in node.bases)
        }
        self._trained = {*_MODELS, *self._stepped()}
        self._training = self._functions_that_train()
        calls = [node for node in ast.walk(source.tree) if isinstance(node, ast.Call)]
        self.found.accelerate = any(last_name(call) == "Accelerator" for call in calls)
        self.visit(source.tree)

    def _stepped(self) -> Iterator[str]:
        """The names of what an optimizer gets the parameters of."""
        for node in ast.walk(self._source.tree):
            if isinstance(node, ast.Call) and last_name(node) in _OPTIMIZERS and node.args:
                for part in ast.walk(node.args[0]):
                    if isinstance(part, ast.Call) and last_name(part) in ("parameters", "named_parameters"):
                        yield last_name(part.func.value if isinstance(part.func, ast.Attribute) else part.func)

    def _functions_that_train(self) -> set[str]:
        """Those that go backward, or call one that does."""
        functions = [node for node in ast.walk(self._source.tree) if isinstance(node, ast.FunctionDef)]
        calls = {
            one.name: {last_name(node) for node in ast.walk(one) if isinstance(node, ast.Call)} for one in functions
        }
        training: set[str] = {"backward"}
        while more := {name for name, called in calls.items() if name not in training and called & training}:
            training |= more
        return training

    def _change(self, node: Node, why: str, *parts: str | Node) -> None:
        had = " ".join(self._source.of(node).split())
        shown = had if len(had) < 60 else had[:57] + "..."
        self.found.changes.append(Change(node, parts, f"{why}; the script has: {shown}"))

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        if node.name in self._modules:  # what a module consists of is no model to be trained
            return
        for statement in node.body:
            # What stands there besides functions runs at import, when there is no task yet.
            if isinstance(statement, ast.FunctionDef | ast.ClassDef):
                self.visit(statement)

    def visit_For(self, node: ast.For) -> None:
        named = last_name(node.target)
        if named.startswith(("epoch", "ep", "_")) and isinstance(node.iter, ast.Call) and self._trains(node):
            self._change(node.iter, "one pass over the task's loader is the whole training, all epochs", "range(1)")
        self.generic_visit(node)

    def _trains(self, node: ast.stmt) -> bool:
        return any(isinstance(one, ast.Call) and last_name(one) in self._training for one in ast.walk(node))

    def visit_Assign(self, node: ast.Assign) -> None:
        self._assigned(node.value, node.targets[0])
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self._assigned(node.value, node.target)
        self.generic_visit(node)

    def _assigned(self, value: ast.expr, target: ast.expr) -> None:
        name, of = last_name(target), self._source.of
        if isinstance(target, ast.Subscript) and of(target.value).endswith("environ"):
            if any(variable in of(target.slice) for variable in ("MASTER_", "RANK", "WORLD_SIZE")):
                self._change(value, "set for each rank already", target)
        elif name == "device" and "accelerator" not in of(value):
            self._change(value, "the device of the task", f"{TASK}.device")
        elif name == "world_size" and "device_count" in of(value):
            self._change(value, "the number of ranks of the task", f"{TASK}.world_size")
        elif _ACCUMULATION.search(name) and isinstance(value, ast.Constant) and type(value.value) is int:
            self._accumulates(value)
        elif name in self._trained and isinstance(call := _unwrapped(value), ast.Call) and self._makes_model(call):
            self._model(call)

    def _makes_model(self, call: ast.Call) -> bool:
        return last_name(call) not in ("load", "eval", "train", *_WRAPPERS) and last_name(call) not in self._modules

    def _model(self, call: ast.Call) -> None:
        self.found.model = True
        self._change(call, "the model of the task", f"{TASK}.model()")

    def visit_Attribute(self, node: ast.Attribute) -> None:
        is_option = isinstance(node.ctx, ast.Load) and _OPTIONS.search(last_name(node.value))
        if is_option and _ACCUMULATION.search(node.attr):
            self._accumulates(node)
        self.generic_visit(node)

    def visit_keyword(self, node: ast.keyword) -> None:
        if node.arg is not None and _ACCUMULATION.search(node.arg) and not isinstance(node.value, ast.Name):
            self._accumulates(node.value)
        self.generic_visit(node)

    def _accumulates(self, node: ast.expr) -> None:
        self.found.accumulates = True
        self._change(node, "micro-batches in a window, as the case asks", f"{TASK}.accumulation")

    def visit_Expr(self, node: ast.Expr) -> None:
        call = node.value
        name = last_name(call) if isinstance(call, ast.Call) else ""
        is_saved = name == "save" and self._source.of(call).startswith(("torch.", "accelerator."))
        if name in _LEFT_OUT or is_saved:
            self._change(node, _LEFT_OUT.get(name, _NOT_SAVED), "pass")
        else:
            self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        for rule in (self._of_data, self._of_ranks, self._of_optimizer, self._of_precision, self._of_device):
            if rule(node, last_name(node), self._source.of(node.func)):
                break
        self.generic_visit(node)

    def _of_data(self, node: ast.Call, name: str, function: str) -> bool:
        """The model, the data and the loss."""
        if name == "backward":
            self.found.backward = True
        elif name in self._modules:
            self._model(node)
        elif name == "DataLoader":
            self.found.loader = True
            share, loader = (
                ("all ranks'", "global_dataloader") if self.found.accelerate else ("this rank's", "dataloader")
            )
            self._change(node, f"the data of the task, pairs of x and y, {share} share", f"{TASK}.{loader}()")
        elif "datasets." in function or name in ("load_dataset", "random_split"):
            self._change(node, "the data of the task", f"{TASK}.dataset()")
        elif name.endswith("Loss"):
            self.found.loss = True
            self._change(node, "the loss of the task", "torch.nn.MSELoss()")
        elif _LOSSES.search(name) and len(node.args) >= 2:
            self.found.loss = True
            mean = ("torch.nn.functional.mse_loss(", node.args[0], ", ", node.args[1], ")")
            self._change(node, "the loss of the task", *mean)
        else:
            return False
        return True

    def _of_optimizer(self, node: ast.Call, name: str, function: str) -> bool:
        """The optimizer, its schedule and the clip before it."""
        first = node.args[0] if node.args else None
        if name in _OPTIMIZERS and (parameters := first or _keyword(node, "params")) is not None:
            self.found.optimizer = True
            self._change(node, "the optimizer of the task", f"{TASK}.optimizer(", parameters, ")")
        elif name == "configure_optimizers" and isinstance(node.func, ast.Attribute):
            self.found.optimizer = True
            self._change(node, "the optimizer of the task", f"{TASK}.optimizer(", node.func.value, ".parameters())")
        elif (name.endswith("LR") or re.match(r"get_\w*schedule", name)) and (
            optimizer := first or _keyword(node, "optimizer")
        ) is not None:
            self.found.scheduler = True
            why = "the schedule of the task: step it after each optimizer step"
            self._change(node, why, f"{TASK}.scheduler(", optimizer, ")")
        elif name in ("clip_grad_norm_", "clip_grad_value_") and first is not None:
            self.found.clips.append("norm" if "norm" in name else "value")
            limit = f', {TASK}.clip.threshold if {TASK}.clip else float("inf"))'
            own = (function, "(", first, limit) if "accelerator" in function else (f"{TASK}.clip_(", first, ")")
            self._change(node, "the clip of the case, if it has one", *own)
        else:
            return False
        return True

    def _of_ranks(self, node: ast.Call, name: str, function: str) -> bool:
        """Who starts the ranks, and how they find each other."""
        first = node.args[0] if node.args else None
        if name == "init_process_group":
            self._change(node, "the ranks are started already", f"{function}({TASK}.collective_backend)")
        elif name in ("DistributedDataParallel", "DDP") and first is not None:
            self.found.ddp = True
            if any(one.arg in ("device_ids", "output_device") for one in node.keywords):
                rest = [(f", {one.arg}=", one.value) for one in node.keywords if "device" not in (one.arg or "")]
                more = [part for pair in rest for part in pair]
                self._change(node, "on the device of the task", f"{function}(", first, *more, ")")
        elif name == "spawn" and first is not None and function.startswith(("mp.", "torch.multiprocessing.", "spawn")):
            given = _keyword(node, "args")
            more = [part for one in given.elts for part in (", ", one)] if isinstance(given, ast.Tuple) else []
            self._change(node, "the ranks are started already", first, f"({TASK}.rank", *more, ")")
        elif name == "device_count":
            self._change(node, "the number of ranks of the task", f"{TASK}.world_size")
        elif name == "Accelerator":
            named = [one for one in node.keywords if one.arg not in _FOR_ACCELERATE]
            kept: list[str | Node] = [part for one in node.args for part in (one, ", ")]
            kept += [part for one in named for part in (f"{one.arg}=", one.value, ", ")]
            why = "on the device of the task, with a schedule that counts steps, whatever the number of processes"
            wanted = ", ".join(f"{name}={value}" for name, value in _FOR_ACCELERATE.items())
            self._change(node, why, f"{function}(", *kept, f"{wanted})")
        elif name == "parse_args" and not node.args:
            self._change(node, "the defaults; give here the options that the script requires", f"{function}([])")
        else:
            return False
        return True

    def _of_precision(self, node: ast.Call, name: str, function: str) -> bool:
        if name == "GradScaler":
            self.found.scaler = self.found.autocast = True
            self._change(node, "enabled in fp16 alone", f"{TASK}.grad_scaler()")
        elif name == "autocast" and "accelerator" not in function:
            self.found.autocast = True
            self._change(node, "casts as the precision of the case asks", f"{TASK}.autocast()")
        else:
            return False
        return True

    def _of_device(self, node: ast.Call, name: str, function: str) -> bool:
        if not isinstance(node.func, ast.Attribute):
            return False
        first = node.args[0] if node.args else None
        if name == "cuda" and function != "torch.cuda":
            self._change(node, "on the device of the task", node.func.value, f".to({TASK}.device)")
        elif name == "to" and first is not None and _OF_A_RANK.search(self._source.of(first)):
            self._change(first, "the device of the task", f"{TASK}.device")
        return True


def _keyword(node: ast.Call, name: str) -> ast.expr | None:
    return next((one.value for one in node.keywords if one.arg == name), None)


def _unwrapped(value: ast.expr) -> ast.expr:
    """`Net()` of `Net().to(device)` and of `DDP(Net())`."""
    while isinstance(value, ast.Call) and last_name(value) in _WRAPPERS:
        if last_name(value) in ("to", "cuda") and isinstance(value.func, ast.Attribute):
            value = value.func.value
        elif value.args:
            value = value.args[0]
        else:
            break
    return value
