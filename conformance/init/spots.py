"""Where a training script makes what a task hands out, and what stands there instead."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from .checks import Checks, keys_of_batches, outside_of_modules
from .commands import commands, options
from .loops import Loops, is_counted, lengths, linked, shares, steps_of_schedulers
from .shapes import is_mean_of_squares, reshapes
from .source import Change, Node, Source, every, is_module, keyword, last_name, made

#: The name under which the adapter keeps the task.
TASK = "TASK"

_OPTIMIZERS = (
    *("SGD", "Adam", "AdamW", "Adagrad", "Adadelta", "Adamax", "NAdam", "RAdam", "RMSprop", "Adafactor", "ASGD"),
    *("Rprop", "LBFGS", "Lion", "Muon", "LAMB", "Lamb", "LARS", "FusedAdam", "AdamW8bit", "SOAP", "Shampoo"),
)
_LOSSES = re.compile(r"(cross_entropy|nll_loss|mse_loss|l1_loss|binary_cross_entropy\w*|smooth_l1_loss|huber_loss)$")
_OF_A_RANK = re.compile(r"rank|gpu", re.IGNORECASE)
_OPTIONS = re.compile(r"(args|config|cfg|hparams|params|options|opts?)$", re.IGNORECASE)
_ACCUMULATION = re.compile(r"accum", re.IGNORECASE)
_SCHEDULER = re.compile(r"sched", re.IGNORECASE)
_OPTIMIZER = re.compile(r"optim(izer)?(_\w+)?$|opt$", re.IGNORECASE)
_AMP = re.compile(r"(use_)?(amp|fp16|bf16|half)$", re.IGNORECASE)
#: By what the task hands out: a name that a script gives it, where nothing else shows it, and what stands there.
_BY_NAME = {
    "optimizer": (_OPTIMIZER, "the optimizer of the task"),
    "loader": (re.compile(r"(\w*_)?(data)?(loaders?|dl)$", re.IGNORECASE), "the data of the task, pairs of x and y"),
    "loss": (re.compile(r"criterion|criteria|loss_(fn|func|function)$", re.IGNORECASE), "the loss of the task"),
}
_TARGET = re.compile(r"label|target|tgt|(^|_)(y|gt|answer)", re.IGNORECASE)
_PASSES = ("iter", "enumerate", "tqdm", "cycle", "prepare", "zip", "len")
_WRAPPERS = ("DistributedDataParallel", "DDP", "DataParallel", "compile", "prepare", "to", "cuda", "FSDP")
_CASTS = "casts as the precision of the case asks"
_SCHEDULE = "the schedule of the task: step it after each optimizer step"
_DATA = "the data of the task"
_WITH_OPTIMIZER = "with the optimizer's steps alone, as an Accelerator does by default"
_WHOLE = "one pass over the task's loader is the whole training, all epochs"
_NOT_SAVED = "nothing is saved here"
#: Calls for their effect alone.
_LEFT_OUT = {
    "set_epoch": "the task's loader orders its epochs by itself: this call is not judged here",
    "set_device": "the device of the task is used",
    "manual_seed": "nothing is drawn",
    "save_pretrained": _NOT_SAVED,
    "save_state": _NOT_SAVED,
    "run_line_magic": "of a notebook",
    "run_cell_magic": "of a notebook",
    "system": "of a notebook",
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
    fsdp: bool = False
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


class _Finder(ast.NodeVisitor):
    def __init__(self, source: Source) -> None:
        self.found, self._source = Found(), source
        self._modules = {node.name for node in every(source.tree, ast.ClassDef) if is_module(node)}
        #: Of the script itself, without those of its models.
        self._functions = set(self._defined(source.tree))
        self._trained = {*_MODELS, *self._stepped()} - {"self", ""}
        self._loops = Loops(source.tree)
        self.found.accelerate = any(last_name(call) == "Accelerator" for call in every(source.tree, ast.Call))
        self._unpacked: dict[ast.expr, int] = {}
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

    def _defined(self, node: ast.AST) -> Iterator[str]:
        for one in ast.iter_child_nodes(node):
            if isinstance(one, ast.FunctionDef):
                yield one.name
            if not (isinstance(one, ast.ClassDef) and one.name in self._modules):
                yield from self._defined(one)

    def _stepped(self) -> Iterator[str]:
        """The names of what an optimizer gets the parameters of."""
        for node in every(self._source.tree, ast.Call):
            for part in every(node.args[0], ast.Call) if last_name(node) in _OPTIMIZERS and node.args else ():
                if last_name(part) in ("parameters", "named_parameters"):
                    yield last_name(part.func.value if isinstance(part.func, ast.Attribute) else part.func)

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
        named, calls = last_name(node.target), {last_name(one) for one in every(node, ast.Call)}
        counted = is_counted(node)
        if isinstance(node.iter, ast.Name) and node.iter.id in self._trained:
            self._change(node.iter, "the layers of the task's model, if it has any", node.iter, ".children()")
        elif not self._loops.trains(node) or not isinstance(node.iter, ast.Call):
            pass
        elif named.startswith(("epoch", "ep", "_")) or (counted and self._loops.trains_in_a_loop(node)):
            self._change(node.iter, _WHOLE, "range(1)")
        elif counted and "next" in calls and not any(one != node for one in every(node, ast.For)):
            self._change(node.iter, "as many micro-batches as the task has", f"range(len({TASK}.dataloader()))")
        elif counted and "next" in calls:
            self._change(node.iter, "as many windows as the task has", f"range({TASK}.steps)")
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
        """`autocast() if use_amp else nullcontext()`: the task's does nothing where the case is in full precision."""
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
                self._change(value, "set for each rank already", target)
        elif name == "device" and "accelerator" not in of(value):
            is_text = not any(last_name(one) == "device" for one in every(value, ast.Call))
            self._change(value, "the device of the task", f"str({TASK}.device)" if is_text else f"{TASK}.device")
        elif _AMP.match(name) and not isinstance(value, ast.Constant | ast.Attribute):
            self._change(value, _CASTS, f'{TASK}.precision != "fp32"')
        elif name == "world_size" and "device_count" in of(value):
            self._change(value, "the number of ranks of the task", f"{TASK}.world_size")
        elif _ACCUMULATION.search(name) and isinstance(value, ast.Constant) and type(value.value) is int:
            self._accumulates(value)
        elif _SCHEDULER.search(name) and isinstance(value, ast.Call) and last_name(value) == "instantiate":
            given = [
                one for one in (*value.args, *(one.value for one in value.keywords)) if _OPTIMIZER.match(last_name(one))
            ]
            for optimizer in given[:1]:
                self.found.scheduler = True
                self._change(value, _SCHEDULE, f"{TASK}.scheduler(", optimizer, ")")
        elif name in self._trained and isinstance(call := _unwrapped(value), ast.Call) and self._makes_model(call):
            self._model(call)

    def _makes_model(self, call: ast.Call) -> bool:
        of_options = [
            one for one in call.args if isinstance(one, ast.Attribute) and _OPTIONS.search(last_name(one.value))
        ]
        takes_one = any(last_name(one) in self._trained for one in call.args if one not in of_options)
        others = ("load", "eval", "train", *_WRAPPERS, *self._modules, *self._loops.training)
        return last_name(call) not in others and not takes_one

    def _model(self, call: ast.Call) -> None:
        self.found.model = True
        self._change(call, "the model of the task", f"{TASK}.model()")

    def visit_Name(self, node: ast.Name) -> None:
        """What a command line gives."""
        if node.id in self._options and _ACCUMULATION.search(node.id) and isinstance(node.ctx, ast.Load):
            self._accumulates(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        is_option = isinstance(node.ctx, ast.Load) and _OPTIONS.search(last_name(node.value))
        if is_option and _ACCUMULATION.search(node.attr):
            self._accumulates(node)
        elif is_option and _AMP.match(node.attr):
            self._change(node, _CASTS, f'({TASK}.precision != "fp32")')
        elif isinstance(node.ctx, ast.Load) and self._source.of(node) == "sys.argv":
            self._change(node, "no options are given", "[__file__]")
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
        if name in ("exit", "quit") and isinstance(call, ast.Call) and call.args and isinstance(call.args[0], ast.Call):
            self._change(call, "the process goes on", call.args[0])
            self.generic_visit(node)
        elif name in _LEFT_OUT or is_saved:
            self._change(node, _LEFT_OUT.get(name, _NOT_SAVED), "pass")
        else:
            self.generic_visit(node)

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
            self._change(node, f"the data of the task, {of}, {share} share", f"{TASK}.{loader}({_format(keys)})")
        elif name == "random_split" and len(node.args) > 1:
            self._change(node, _DATA, f"[{TASK}.dataset()] * len(", node.args[1], ")")
        elif "datasets." in function or name == "load_dataset":
            self._change(node, _DATA, self._as_many(node, f"{TASK}.dataset()"))
        elif name.endswith("Loss") and not name.startswith(("get", "compute", "update")):
            self.found.loss = True
            self._change(node, "the loss of the task", "torch.nn.MSELoss(", *_reduction(node), ")")
        elif _LOSSES.search(name) and len(node.args) >= 2:
            self.found.loss = True
            reduction = [", ", *_reduction(node)] if _reduction(node) else []
            mean = ("torch.nn.functional.mse_loss(", node.args[0], ", ", node.args[1], *reduction, ")")
            self._change(node, "the loss of the task", *mean)
        else:
            return False
        return True

    def _losses(self) -> set[str]:
        """The names of what is called for the loss."""
        found = {"mse_loss", "cross_entropy", "nll_loss", "binary_cross_entropy_with_logits", "criterion", "loss_fn"}
        found |= {last_name(target) for target, call in made(self._source.tree) if last_name(call).endswith("Loss")}
        return found - {""}

    def _reshaped(self, losses: set[str]) -> None:
        def is_taker(call: ast.Call) -> bool:
            return last_name(call) in self._trained | losses or _LOSSES.search(last_name(call)) is not None

        for call, whole in reshapes([*outside_of_modules(self._source.tree)], is_taker):
            if all(call is not one.node for one in self.found.changes):
                self._change(call, "inputs are (m, n), outputs and targets (m, 1)", whole)

    def _schedule(self) -> None:
        """One that is stepped after each epoch is left out: here all epochs are one."""
        in_epochs, accelerators = self._loops.in_epochs(), linked(self._source)
        for call, scheduler in steps_of_schedulers(self._source.tree):
            if call in in_epochs:
                self.found.scheduler = False
                why = "CHECK: the schedule counts epochs, which are one here: it is not judged"
                self.found.changes.append(Change(call, ("None",), why))
            elif (accelerator := accelerators.get(last_name(scheduler))) is not None:
                self._change(call, _WITH_OPTIMIZER, call, f" if {accelerator}.sync_gradients else None")

    def visit_Dict(self, node: ast.Dict) -> None:
        keys = [one.value for one in node.keys if isinstance(one, ast.Constant)]
        if "params" in keys and len(keys) > 1:
            self._change(node, "with the settings of the task", '{"params": ', node.values[keys.index("params")], "}")
        self.generic_visit(node)

    def _find_windows(self) -> None:
        """Windows whose length has a name of its own, or none."""
        changed = [one.node for one in self.found.changes]
        for node in lengths(self._source) if self.found.backward else ():
            if node not in changed:
                self._accumulates(node)
        for statement in shares(self._source, _ACCUMULATION.search):
            self._change(statement, "the task's are of each rank already", "pass")

    def _find_streams(self) -> None:
        """Batches that a function of the script gives one after the other."""
        if self.found.loader:
            return
        calls = every(self._source.tree, ast.Call)
        taken = {last_name(one.args[0]) for one in calls if last_name(one) == "next" and one.args}
        for target, call in made(self._source.tree):
            if last_name(target) in taken:
                self.found.loader = True
                self._change(call, f"{_DATA}, pairs of x and y", f"iter({TASK}.dataloader())")
        for loop in self._loops.over_data if not self.found.loader else ():
            if isinstance(loop.iter, ast.Call) and last_name(loop.iter) in self._functions:
                self.found.loader = True
                self._change(loop.iter, f"{_DATA}, pairs of x and y", f"{TASK}.dataloader()")

    def _as_many(self, node: ast.expr, text: str) -> str:
        """As many as the names that a value is unpacked to."""
        return f"({text},) * {self._unpacked[node]}" if node in self._unpacked else text

    def _find_by_name(self) -> None:
        """What is made elsewhere, and shows by its name alone."""
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

    def _of_optimizer(self, node: ast.Call, name: str, function: str) -> bool:
        """The optimizer, its schedule and the clip before it."""
        first = node.args[0] if node.args else None
        if name in _OPTIMIZERS and (parameters := first or keyword(node, "params")) is not None:
            self.found.optimizer = True
            self._change(node, "the optimizer of the task", f"{TASK}.optimizer(", parameters, ")")
        elif name == "configure_optimizers" and isinstance(node.func, ast.Attribute) and name not in self._functions:
            self.found.optimizer = True
            self._change(node, "the optimizer of the task", f"{TASK}.optimizer(", node.func.value, ".parameters())")
        elif (name.endswith("LR") or re.match(r"get_\w*schedule", name)) and (
            optimizer := first or keyword(node, "optimizer")
        ) is not None:
            self.found.scheduler = True
            self._change(node, _SCHEDULE, f"{TASK}.scheduler(", optimizer, ")")
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
        elif name == "fully_shard":
            self.found.fsdp = True
        elif name == "spawn" and first is not None and function.startswith(("mp.", "torch.multiprocessing.", "spawn")):
            given = keyword(node, "args")
            more = [part for one in given.elts for part in (", ", one)] if isinstance(given, ast.Tuple) else []
            self._change(node, "the ranks are started already", first, f"({TASK}.rank", *more, ")")
        elif name == "device_count":
            self._change(node, "the number of ranks of the task", f"{TASK}.world_size")
        elif name == "Accelerator":
            wanted = dict(_FOR_ACCELERATE)
            precision = keyword(node, "mixed_precision")
            if precision is not None and not (isinstance(precision, ast.Constant) and precision.value in (None, "no")):
                self.found.autocast = True
                wanted["mixed_precision"] = f'"bf16" if {TASK}.precision == "bf16" else "no"'
            named = [one for one in node.keywords if one.arg not in wanted]
            kept: list[str | Node] = [part for one in node.args for part in (one, ", ")]
            kept += [part for one in named for part in (f"{one.arg}=", one.value, ", ")]
            why = "as the case asks, with a schedule that counts steps, whatever the number of processes"
            own = ", ".join(f"{name}={value}" for name, value in wanted.items())
            self._change(node, why, f"{function}(", *kept, f"{own})")
        else:
            return False
        return True

    def _of_precision(self, node: ast.Call, name: str, function: str, whole: ast.expr | None = None) -> bool:
        """``whole``: what is to be changed, if it is more than the call."""
        if name == "GradScaler":
            self.found.scaler = self.found.autocast = True
            self._change(whole or node, "enabled in fp16 alone", f"{TASK}.grad_scaler()")
        elif name == "autocast" and "accelerator" not in function:
            self.found.autocast = True
            self._change(whole or node, _CASTS, f"{TASK}.autocast()")
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


def _format(keys: list[str] | None) -> str:
    """The argument for batches that are read by keys."""
    if not keys:
        return "" if keys is None else "format=dict"
    parts = [f'"{key}": batch.{"targets" if _TARGET.search(key) else "inputs"}' for key in keys]
    return f"format=lambda batch: {{{', '.join(parts)}}}"


def _reduction(node: ast.Call) -> list[str | Node]:
    """How a loss is reduced, which the task's must be, too."""
    given = keyword(node, "reduction")
    return [] if given is None else ["reduction=", given]


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
