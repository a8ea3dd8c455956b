"""Replaces the calls of a script by those of the task, where names show what the calls make."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from .checks import keys_of_batches
from .loops import Loops
from .shapes import is_mean_of_squares
from .source import Change, Node, Source, every, is_module, keyword, last_name

#: The name under which the adapter keeps the task.
TASK = "TASK"
OPTIMIZERS = (
    *("SGD", "Adam", "AdamW", "Adagrad", "Adadelta", "Adamax", "NAdam", "RAdam", "RMSprop", "Adafactor", "ASGD"),
    *("Rprop", "LBFGS", "Lion", "Muon", "LAMB", "Lamb", "LARS", "FusedAdam", "AdamW8bit", "SOAP", "Shampoo"),
)
LOSSES = re.compile(r"(cross_entropy|nll_loss|mse_loss|l1_loss|binary_cross_entropy\w*|smooth_l1_loss|huber_loss)$")
CASTS = "casts as the case's precision requires"
SCHEDULE = "the task's schedule: step it after each optimizer step"
DATA = "the task's data"
_OF_A_RANK = re.compile(r"rank|gpu", re.IGNORECASE)
_TARGET = re.compile(r"label|target|tgt|(^|_)(y|gt|answer)", re.IGNORECASE)
_FOR_ACCELERATE = {"cpu": f'{TASK}.device.type == "cpu"', "step_scheduler_with_optimizer": "False"}


@dataclass
class Found:
    """The changes to a script, and the features that it supports.

    Attributes:
        model, optimizer, loader, loss: whether the place that makes it was found.
        backward: whether the script calls backward, so has a training loop.
    """

    changes: list[Change] = field(default_factory=list)
    model: bool = False
    optimizer: bool = False
    loader: bool = False
    loss: bool = False
    backward: bool = False
    ddp: bool = False
    fsdp: bool = False
    accelerate: bool = False
    autocast: bool = False
    scaler: bool = False
    scheduler: bool = False
    accumulates: bool = False
    clips: list[str] = field(default_factory=list)

    @property
    def missing(self) -> list[str]:
        """What the task provides and was not found in the script."""
        return [name for name in ("model", "optimizer", "loader", "loss") if not getattr(self, name)]


class Calls(ast.NodeVisitor):
    """Finds the calls of a script that the task replaces."""

    def __init__(self, source: Source) -> None:
        self.found, self._source = Found(), source
        self._modules = {node.name for node in every(source.tree, ast.ClassDef) if is_module(node)}
        #: The script's functions, without those of its models.
        self._functions = set(self._defined(source.tree))
        self._loops = Loops(source.tree)
        self.found.accelerate = any(last_name(call) == "Accelerator" for call in every(source.tree, ast.Call))
        self._unpacked: dict[ast.expr, int] = {}

    def _defined(self, node: ast.AST) -> Iterator[str]:
        for one in ast.iter_child_nodes(node):
            if isinstance(one, ast.FunctionDef):
                yield one.name
            if not (isinstance(one, ast.ClassDef) and one.name in self._modules):
                yield from self._defined(one)

    def _change(self, node: Node, why: str, *parts: str | Node) -> None:
        had = " ".join(self._source.of(node).split())
        shown = had if len(had) < 60 else had[:57] + "..."
        self.found.changes.append(Change(node, parts, f"{why}; the script has: {shown}"))

    def _as_many(self, node: ast.expr, text: str) -> str:
        """Repeats a text for each name that the value is unpacked to."""
        return f"({text},) * {self._unpacked[node]}" if node in self._unpacked else text

    def _model(self, call: ast.Call) -> None:
        self.found.model = True
        self._change(call, "the task's model", f"{TASK}.model()")

    def _accumulates(self, node: ast.expr) -> None:
        self.found.accumulates = True
        self._change(node, "micro-batches per window, as the case requires", f"{TASK}.accumulation")

    def visit_Call(self, node: ast.Call) -> None:
        self.found.loss |= is_mean_of_squares(node)
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
            keys = keys_of_batches(self._source.tree, self._loops.over_data)
            of = "pairs of x and y" if keys is None else "inputs and targets by the script's keys"
            self._change(node, f"the task's data, {of}, {share} share", f"{TASK}.{loader}({_format(keys)})")
        elif name == "random_split" and len(node.args) > 1:
            self._change(node, DATA, f"[{TASK}.dataset()] * len(", node.args[1], ")")
        elif "datasets." in function or name == "load_dataset":
            self._change(node, DATA, self._as_many(node, f"{TASK}.dataset()"))
        elif name.endswith("Loss") and not name.startswith(("get", "compute", "update")):
            self.found.loss = True
            self._change(node, "the task's loss", "torch.nn.MSELoss(", *_reduction(node), ")")
        elif LOSSES.search(name) and len(node.args) >= 2:
            self.found.loss = True
            reduction = [", ", *_reduction(node)] if _reduction(node) else []
            mean = ("torch.nn.functional.mse_loss(", node.args[0], ", ", node.args[1], *reduction, ")")
            self._change(node, "the task's loss", *mean)
        else:
            return False
        return True

    def _of_optimizer(self, node: ast.Call, name: str, function: str) -> bool:
        """The optimizer, its schedule and the clip before it."""
        first = node.args[0] if node.args else None
        if name in OPTIMIZERS and (parameters := first or keyword(node, "params")) is not None:
            self.found.optimizer = True
            self._change(node, "the task's optimizer", f"{TASK}.optimizer(", parameters, ")")
        elif name == "configure_optimizers" and isinstance(node.func, ast.Attribute) and name not in self._functions:
            self.found.optimizer = True
            self._change(node, "the task's optimizer", f"{TASK}.optimizer(", node.func.value, ".parameters())")
        elif (name.endswith("LR") or re.match(r"get_\w*schedule", name)) and (
            optimizer := first or keyword(node, "optimizer")
        ) is not None:
            self.found.scheduler = True
            self._change(node, SCHEDULE, f"{TASK}.scheduler(", optimizer, ")")
        elif name in ("clip_grad_norm_", "clip_grad_value_") and first is not None:
            self.found.clips.append("norm" if "norm" in name else "value")
            limit = f', {TASK}.clip.threshold if {TASK}.clip else float("inf"))'
            own = (function, "(", first, limit) if "accelerator" in function else (f"{TASK}.clip_(", first, ")")
            self._change(node, "the case's clip, if it has one", *own)
        else:
            return False
        return True

    def _of_ranks(self, node: ast.Call, name: str, function: str) -> bool:
        """The start of the ranks, and how they find each other."""
        first = node.args[0] if node.args else None
        if name == "init_process_group":
            self._change(node, "the ranks are already running", f"{function}({TASK}.collective_backend)")
        elif name in ("DistributedDataParallel", "DDP") and first is not None:
            self.found.ddp = True
            if any(one.arg in ("device_ids", "output_device") for one in node.keywords):
                rest = [(f", {one.arg}=", one.value) for one in node.keywords if "device" not in (one.arg or "")]
                more = [part for pair in rest for part in pair]
                self._change(node, "on the task's device", f"{function}(", first, *more, ")")
        elif name == "fully_shard":
            self.found.fsdp = True
        elif name == "spawn" and first is not None and function.startswith(("mp.", "torch.multiprocessing.", "spawn")):
            given = keyword(node, "args")
            more = [part for one in given.elts for part in (", ", one)] if isinstance(given, ast.Tuple) else []
            self._change(node, "the ranks are already running", first, f"({TASK}.rank", *more, ")")
        elif name == "device_count":
            self._change(node, "the task's number of ranks", f"{TASK}.world_size")
        elif name == "Accelerator":
            wanted = dict(_FOR_ACCELERATE)
            precision = keyword(node, "mixed_precision")
            if precision is not None and not (isinstance(precision, ast.Constant) and precision.value in (None, "no")):
                self.found.autocast = True
                wanted["mixed_precision"] = f'"bf16" if {TASK}.precision == "bf16" else "no"'
            named = [one for one in node.keywords if one.arg not in wanted]
            kept: list[str | Node] = [part for one in node.args for part in (one, ", ")]
            kept += [part for one in named for part in (f"{one.arg}=", one.value, ", ")]
            why = "as the case requires, with a schedule that counts steps for any number of processes"
            own = ", ".join(f"{name}={value}" for name, value in wanted.items())
            self._change(node, why, f"{function}(", *kept, f"{own})")
        else:
            return False
        return True

    def _of_precision(self, node: ast.Call, name: str, function: str, whole: ast.expr | None = None) -> bool:
        """``whole``: the node to change, if it is more than the call."""
        if name == "GradScaler":
            self.found.scaler = self.found.autocast = True
            self._change(whole or node, "enabled only in fp16", f"{TASK}.grad_scaler()")
        elif name == "autocast" and "accelerator" not in function:
            self.found.autocast = True
            self._change(whole or node, CASTS, f"{TASK}.autocast()")
        else:
            return False
        return True

    def _of_device(self, node: ast.Call, name: str, function: str) -> bool:
        if not isinstance(node.func, ast.Attribute):
            return False
        first = node.args[0] if node.args else None
        if name == "cuda" and function != "torch.cuda":
            self._change(node, "on the task's device", node.func.value, f".to({TASK}.device)")
        elif name == "to" and first is not None and _OF_A_RANK.search(self._source.of(first)):
            self._change(first, "the task's device", f"{TASK}.device")
        return True


def _format(keys: list[str] | None) -> str:
    """The format argument for batches that are read by keys."""
    if not keys:
        return "" if keys is None else "format=dict"
    parts = [f'"{key}": batch.{"targets" if _TARGET.search(key) else "inputs"}' for key in keys]
    return f"format=lambda batch: {{{', '.join(parts)}}}"


def _reduction(node: ast.Call) -> list[str | Node]:
    """The script's reduction of the loss, which the task's loss keeps."""
    given = keyword(node, "reduction")
    return [] if given is None else ["reduction=", given]
