"""The text of a script for one case."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from itertools import accumulate
from typing import Any

from conformance.adapter.backends import BACKENDS
from conformance.adapter.task import Task
from conformance.cases.case import INSIDE_WINDOW, Case
from conformance.repro.bundle import MODELS, PARTS, Bundle, Given, part_names
from conformance.repro.literals import assigned, literal
from conformance.repro.showing import CannotShow, Ending, Numbers
from conformance.repro.sources import CannotCopy, Source, decorator_name
from conformance.workloads import model
from conformance.workloads.plan import order_of, planned_windows, turns_of
from conformance.workloads.workload import Workload

#: With these a trainer reads whole epochs in loops of its own.
_OF_EPOCHS = frozenset({"dataset", "sampler", "global_sampler"})
#: With these it reports weights; `step` as a context alone, as optimizers have one, too.
_REPORTS = frozenset({"report", "with step"})
_OF_A_STOP = ("stop_after", "stop_inside", "save_after", "checkpoint_dir", "resume_from")
_OPTIMIZERS = {"sgd": "torch.optim.SGD", "adamw": "torch.optim.AdamW", "adagrad": "torch.optim.Adagrad"}
#: In the models' source, what stands for what a script does not have.
_OF_MODELS = {
    "_Module": "torch.nn.Module",
    "model.Counting.SCALE": str(float(model.Counting.SCALE)),
    "model.LargeTensors().tensors": literal([*model.LargeTensors().tensors]),
}


def why_not(case: Case) -> str | None:
    """Why no script can be written for a case, whatever the trainer."""
    backend = BACKENDS[case.backend]
    if backend.paths == "launched":
        return f"a script cannot start the workers of {case.backend}"
    if case.device != "cpu" or case.arithmetic.on_gpu_only:
        return "a script runs on the CPU, and this case on a GPU"
    if case.resumed_at is not None and case.resumed not in ("once", INSIDE_WINDOW):
        return f"a script stops and resumes training once, and this case is resumed otherwise ({case.resumed})"
    if case.problem.workload.own_order:
        return "the trainer reads the samples in an order of its own, so the right answer is another one in each run"
    return None


def function_in(source: Source, name: str | None) -> str:
    """The trainer's function: ``name``, or the only one that is decorated.

    Raises CannotCopy.
    """
    functions = [node for node in source.tree.body if isinstance(node, ast.FunctionDef)]
    marked = [node.name for node in functions if any(decorator_name(one) == "trainer" for one in node.decorator_list)]
    if name in marked:
        return str(name)
    if name is not None or len(marked) != 1:
        raise CannotCopy(
            f"{source.name} has {'no function' if name is None else f'no function `{name}`'} that is decorated with "
            "`@trainer(...)` where it is defined, which is all that a script can copy"
        )
    return marked[0]


def script(case: Case, shows: Numbers | Ending, source: Source, function: str, package: str) -> str:
    """The script without its docstring. ``package``: the one that the trainer's file is in, or nothing.

    Raises CannotCopy, CannotShow.
    """
    if (reason := why_not(case)) is not None:
        raise CannotShow(reason)
    whole, workload = case.spec(), case.problem.workload
    uses = Bundle(source, package, {}, {}, {}, {}, (), {}).uses(function)
    reads_epochs = bool(uses & _OF_EPOCHS)
    windows = _whole_epochs(whole, shows.windows) if reads_epochs else shows.windows
    spec = cut(whole, windows)
    is_resumed = case.resumed_at is not None and windows > case.resumed_at
    meant, others = _variants(case, shows, is_resumed=is_resumed), _distinct(source)
    written = {taken: others.get(name, name) for name, taken in meant.items() if taken != name}
    bundle = Bundle(
        source,
        package,
        {
            **_settings(spec, workload, keeps_all=reads_epochs),
            **_orders(whole),
            **_shown(shows, workload),
            "STOP": Given(assigned("STOP", _stop(case))),
            "make_model": _model(spec, workload.model),
        },
        meant=meant,
        written={**others, **written, "train": function},
        absent=_OF_MODELS,
        variants=_classes(case, workload, reports=bool(uses & _REPORTS)),
        attributes=_attributes(spec, is_resumed=is_resumed),
    )
    return bundle.text(function, "end" if isinstance(shows, Ending) else "compare")


def cut(spec: Mapping[str, Any], windows: int) -> dict[str, Any]:
    """The same case with its first windows alone."""
    orders, epochs, left = list(spec["orders"]), list[int](), windows
    for order in spec["epochs"]:
        length = _length(spec, order)
        if left > 0:
            epochs.append(order if length <= left else len(orders))
        if 0 < left < length:
            orders.append([share[: left * spec["accumulation"]] for share in orders[order]])
        left -= length
    return {**spec, "orders": orders, "epochs": epochs, "steps": windows}


def _whole_epochs(spec: Mapping[str, Any], windows: int) -> int:
    ends = accumulate(_length(spec, order) for order in spec["epochs"])
    return next(end for end in ends if end >= windows)


def _length(spec: Mapping[str, Any], order: int) -> int:
    """The windows of an epoch in this order."""
    accumulation: int = spec["accumulation"]
    return max(-(-len(share) // accumulation) for share in spec["orders"][order])


def _variants(case: Case, shows: Numbers | Ending, *, is_resumed: bool) -> dict[str, str]:
    """Of what has variants in the parts, the one that is taken. Raises CannotShow."""
    if is_resumed and BACKENDS[case.backend].rendezvous == "horovod":
        raise CannotShow("a script does not stop and resume training under Horovod")
    if is_resumed:
        launch = "resumed"
    elif BACKENDS[case.backend].rendezvous == "horovod":
        launch = "under_horovod"
    elif case.world_size > 1 or isinstance(shows, Ending):
        launch = "in_processes"
    else:
        launch = "in_this_process"
    if isinstance(shows, Ending):
        run = "run_within_limit"
    elif shows.quantity == "gradient":
        run = "run_for_gradients"
    else:
        run = "run_sharded" if case.backend == "fsdp2" else "run"
    batch = "WeightedBatch" if case.problem.workload.loss == "weighted" else "Batch"
    return {"launch": launch, "run": run, "Batch": batch}


def _distinct(source: Source) -> dict[str, str]:
    """Other names for what the parts define and the trainer does, too."""
    own = {*source.definitions, *source.imports} - {"Task", "Batch", "Unsupported", "train"}
    return {name: f"{name}_" for name in part_names() if name in own}


def _classes(case: Case, workload: Workload, *, reports: bool) -> tuple[str, ...]:
    """The variants of the task that the case needs."""
    clip, arithmetic = workload.clip, case.arithmetic
    chosen = {
        "Weighted": workload.loss == "weighted",
        "ClippedByNorm": clip is not None and clip.kind == "norm",
        "ClippedByValue": clip is not None and clip.kind == "value",
        "InBfloat16": arithmetic.amp == "torch" and arithmetic.compute.name == "bf16",
        "InFloat16": arithmetic.amp == "torch" and arithmetic.compute.name == "fp16",
        "InGroups": bool(workload.groups),
        "Reporting": reports,
        "WithLargeTensors": any(tensor.used for tensor in workload.model.tensors),
    }
    return tuple(name for name, is_needed in chosen.items() if is_needed)


def _attributes(spec: Mapping[str, Any], *, is_resumed: bool) -> dict[str, str]:
    """The task's plain values, as source."""
    left_out = {"rank", "local_rank", *(_OF_A_STOP if is_resumed else ())}
    values = vars(Task(dict(spec), 0))
    return {name: literal(value) for name, value in values.items() if not name.startswith("_") and name not in left_out}


def _settings(spec: Mapping[str, Any], workload: Workload, *, keeps_all: bool) -> dict[str, Given]:
    """Data and settings. Samples that no window has are left out, unless the script ``keeps_all``."""
    ranks = range(spec["world_size"])
    planned = [planned_windows(spec, rank) for rank in ranks]
    used = sorted({number for own in planned for window in own for one in window.micro_batches for number in one})
    numbers = list(range(len(spec["samples"]["y"]))) if keeps_all else used
    position = {number: at for at, number in enumerate(numbers)}
    windows = [
        [
            [
                [[position[number] for number in one] for one in window.micro_batches]
                for window in own
                if window.epoch == epoch
            ]
            for own in planned
        ]
        for epoch in range(len(spec["epochs"]))
    ]
    names = ("x", "y", "weight") if spec["loss"] == "weighted" else ("x", "y")
    columns = [[spec["samples"][name][number] for number in numbers] for name in names]
    task = Task(dict(spec), 0)
    further: list[dict[str, Any]] = [{}, *spec["groups"]]
    of = "each sample's inputs, and its target" + (", and its weight" if len(names) > 2 else "")
    return {
        "WORLD_SIZE": Given(assigned("WORLD_SIZE", spec["world_size"])),
        "SAMPLES": Given(assigned("SAMPLES", columns, f"By column: {of}.")),
        "WINDOWS": Given(
            assigned("WINDOWS", windows, "By epoch and rank: windows of micro-batches of the numbers of samples.")
        ),
        "START": Given(assigned("START", _start(spec, workload), "By rank: the parameters at the start.")),
        "USED": Given(assigned("USED", {one.name: [*one.used] for one in workload.model.tensors if one.used})),
        "OPTIMIZER": Given(f"OPTIMIZER = {_OPTIMIZERS[spec['optimizer']['kind']]}"),
        "GROUPS": Given(assigned("GROUPS", [dict(group.arguments) for group in task.optimizer_settings.groups])),
        "SCHEDULES": Given(
            assigned("SCHEDULES", [group.get("schedule") or spec["schedule"] or [1.0] for group in further])
        ),
    }


def _start(spec: Mapping[str, Any], workload: Workload) -> list[Any]:
    found = []
    for weights in spec["model"]["weights"][: spec["world_size"]]:
        values, own = iter(weights), []
        for tensor in workload.model.tensors:
            flat = [next(values) for _ in range(tensor.size)]
            own.append(flat if tensor.used else _shaped(flat, tensor.shape))
        found.append(own)
    return found


def _shaped(flat: list[float], shape: tuple[int, ...]) -> Any:
    if not shape:
        return flat[0]
    length = len(flat) // shape[0]
    return [_shaped(flat[at * length : (at + 1) * length], shape[1:]) for at in range(shape[0])]


def _orders(spec: Mapping[str, Any]) -> dict[str, Given]:
    """What samplers give; of two epochs more than there are, for trainers that count them otherwise."""
    count = len(spec["epochs"]) + 2 if len(spec["orders"]) > 1 else 1
    orders = [[order_of(spec, rank, number) for rank in range(spec["world_size"])] for number in range(count)]
    return {
        "DROP_LAST": Given(assigned("DROP_LAST", spec["sampler"] == "drop")),
        "ORDERS": Given(assigned("ORDERS", orders, "By epoch and rank: the numbers of the samples.")),
        "TURNS": Given(assigned("TURNS", [list(turns_of(spec, number)) for number in range(count)])),
    }


def _shown(shows: Numbers | Ending, workload: Workload) -> dict[str, Given]:
    if isinstance(shows, Ending):
        return {"LIMIT": Given(assigned("LIMIT", 20, "Seconds after which a rank hangs."))}
    names = workload.model.elements
    expected = [(name, *value) for name, value in zip(names, shows.expected, strict=True)]
    what = "the weights" if shows.quantity == "weights" else "the gradients"
    moment = f"after step {shows.step}" if shows.quantity == "weights" else f"the gradient in step {shows.step}"
    return {
        "EXPECTED": Given(assigned("EXPECTED", expected, f"{what.capitalize()}, and how far each may be off.")),
        "MOMENT": Given(assigned("MOMENT", moment)),
    }


def _stop(case: Case) -> dict[str, Any]:
    return {"stop_after": case.resumed_at, "stop_inside": case.resumed_inside, "save_after": (case.resumed_at,)}


def _model(spec: Mapping[str, Any], described: model.Model) -> Given:
    """The function that makes the model."""
    kind = spec["model"]["kind"]
    arguments = {
        "linear": f"{described.features}, 1, bias={getattr(described, 'bias', False)}",
        "with-dropout": f"{described.features}, 1, bias={getattr(described, 'bias', False)}",
        "two-layers": f"{described.features}, {getattr(described, 'hidden', 0)}",
        "counting": f"{described.features}",
        "many-tensors": ", ".join(f"{name}={spec['model'].get(name)}" for name in ("scalars", "experts", "sparse")),
    }
    name = _CLASSES[kind]
    lines = ["def make_model():", f"    model = {name}({arguments.get(kind, '')})"]
    frozen = [tensor.name for tensor in described.tensors if tensor.frozen]
    if not frozen:
        lines = [lines[0], lines[1].replace("model = ", "return ")]
    lines += [f"    model.get_parameter({literal(one)}).requires_grad_(False)" for one in frozen]
    needs = () if kind == "linear" else ((MODELS, name),)
    lines += ["    return model"] if frozen else []
    return Given("\n".join(lines), needs or ((f"{PARTS}.task", "torch"),))


_CLASSES = {
    "linear": "torch.nn.Linear",
    "with-dropout": "WithDropout",
    "two-layers": "TwoLayers",
    "counting": "Counting",
    "many-tensors": "ManyTensors",
    "large-tensors": "LargeTensors",
}
