"""The text of a script for one case, with the variants of its parts that the case needs."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from conformance.adapter.backends import BACKENDS
from conformance.adapter.task import Task
from conformance.cases.case import Case
from conformance.repro.bundle import MODELS, PARTS, Bundle, Given, part_names
from conformance.repro.case_data import assigned, cut, literal, orders, settings, whole_epochs
from conformance.repro.showing import CannotShow, Ending, Numbers, Shows
from conformance.repro.sources import CannotCopy, Source, decorator_name
from conformance.workloads import model
from conformance.workloads.workload import Workload


def variants(case: Case, shows: Shows, *, is_resumed: bool) -> dict[str, str]:
    """The variants, by the names that other parts use for them."""
    in_one_life = "under_horovod" if BACKENDS[case.backend].rendezvous == "horovod" else "in_processes"
    return {
        "in_one_life": in_one_life,
        "launch": _launch(case, shows, in_one_life, is_resumed=is_resumed),
        "run": _run(case, shows),
        "Batch": "WeightedBatch" if case.problem.workload.loss == "weighted" else "Batch",
    }


def main_of(shows: Shows) -> str:
    """The function that ends a script."""
    if isinstance(shows, Numbers) and shows.others:
        return "compare_with_others"
    return "end" if isinstance(shows, Ending) else "compare"


def _launch(case: Case, shows: Shows, in_one_life: str, *, is_resumed: bool) -> str:
    if is_resumed:
        return "resumed_twice" if case.resumed == "twice" else "resumed"
    if in_one_life == "under_horovod" or case.world_size > 1 or isinstance(shows, Ending):
        return in_one_life
    return "in_this_process"


def _run(case: Case, shows: Shows) -> str:
    if isinstance(shows, Ending):
        return "run_within_limit"
    if shows.quantity == "gradient":
        return "run_for_gradients"
    return "run_sharded" if case.backend == "fsdp2" else "run"


#: A trainer that uses these reads whole epochs in its own loops.
_OF_EPOCHS = frozenset({"dataset", "sampler", "global_sampler"})
#: A trainer that uses these reports weights; `step` only as a context, because optimizers have one too.
_REPORTS = frozenset({"report", "with step"})
_OF_A_STOP = ("stop_after", "stop_inside", "save_after", "checkpoint_dir", "resume_from")
_GO_ON = {"stop_after": None, "stop_inside": 0, "save_after": (), "checkpoint_dir": None}
#: In the models' source, replacements of names that a script does not have.
_OF_MODELS = {
    "_Module": "torch.nn.Module",
    "model.Counting.SCALE": str(float(model.Counting.SCALE)),
    "model.LargeTensors().tensors": literal([*model.LargeTensors().tensors]),
}


def why_not(case: Case) -> str | None:
    """Why no script can be written for a case, with any trainer; None if one can."""
    backend = BACKENDS[case.backend]
    instead = f"`conformance run --case {case.id} --traces traces` records what each rank does"
    if backend.paths == "launched":
        return f"a script cannot start the workers of {case.backend}; {instead}"
    if case.device != "cpu" or case.arithmetic.on_gpu_only:
        return f"a script runs on the CPU, but this case on a GPU; {instead}"
    if case.resumed_at is not None and case.resumed.startswith("killed"):
        return f"a script does not kill training while it saves, as this case does; {instead}"
    if case.world_sizes[1] != case.world_size:
        return f"a script does not resume on another number of ranks, as this case does; {instead}"
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
            "`@trainer(...)` at its definition; a script can copy only such a function"
        )
    return marked[0]


def script(case: Case, shows: Shows, source: Source, function: str, package: str) -> str:
    """The script without its docstring. ``package``: the package of the trainer's file, or empty.

    Raises CannotCopy, CannotShow.
    """
    if (reason := why_not(case)) is not None:
        raise CannotShow(reason)
    whole, workload = case.spec(), case.problem.workload
    uses = Bundle(source, package, {}, {}, {}, {}, (), {}).uses(function)
    reads_epochs = bool(uses & _OF_EPOCHS)
    windows = whole_epochs(whole, shows.windows) if reads_epochs else shows.windows
    spec = cut(whole, windows)
    is_resumed = case.resumed_at is not None and windows > case.resumed_at
    meant, others = variants(case, shows, is_resumed=is_resumed), _distinct(source)
    written = {taken: others.get(name, name) for name, taken in meant.items() if taken != name}
    bundle = Bundle(
        source,
        package,
        {
            **settings(spec, workload, keeps_all=reads_epochs),
            **orders(whole),
            **_shown(shows, workload),
            "STOP": Given(assigned("STOP", _stop(case))),
            "GO_ON": Given(assigned("GO_ON", _GO_ON)),
            "make_model": _model(spec, workload.model),
        },
        meant=meant,
        written={**others, **written, "train": function},
        absent=_OF_MODELS,
        variants=_classes(case, workload, reports=bool(uses & _REPORTS)),
        attributes=_attributes(spec, is_resumed=is_resumed),
    )
    return bundle.text(function, main_of(shows))


def _distinct(source: Source) -> dict[str, str]:
    """New names for definitions of the parts that the trainer also defines."""
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
    task = Task(dict(spec), 0)
    asked = {name: getattr(task, name) for name, one in vars(Task).items() if isinstance(one, property)}
    values = {**vars(task), **asked}
    return {name: literal(value) for name, value in values.items() if not name.startswith("_") and name not in left_out}


def _shown(shows: Shows, workload: Workload) -> dict[str, Given]:
    if isinstance(shows, Ending):
        return {"LIMIT": Given(assigned("LIMIT", 20, "Seconds after which a rank hangs."))}
    names = workload.model.elements
    expected = [(name, *value) for name, value in zip(names, shows.expected, strict=True)]
    what = "the weights" if shows.quantity == "weights" else "the gradients"
    moment = f"after step {shows.step}" if shows.quantity == "weights" else f"the gradient in step {shows.step}"
    others = {name or "decides nothing": list(values) for name, values in shows.others}
    return {
        "EXPECTED": Given(assigned("EXPECTED", expected, f"{what.capitalize()}, each with its largest allowed error.")),
        "OTHERS": Given(assigned("OTHERS", others, "Also correct, for a trainer that ...")),
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
    return Given("\n".join(lines), needs or ((f"{PARTS}.stand_in", "torch"),))


_CLASSES = {
    "linear": "torch.nn.Linear",
    "with-dropout": "WithDropout",
    "two-layers": "TwoLayers",
    "counting": "Counting",
    "many-tensors": "ManyTensors",
    "large-tensors": "LargeTensors",
}
