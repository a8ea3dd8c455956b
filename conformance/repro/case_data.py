"""The data and settings of a case as Python source, for a script."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from itertools import accumulate
from pprint import PrettyPrinter
from typing import Any

import torch

from conformance.adapter.optimizer_settings import OptimizerSettings
from conformance.adapter.task import Task
from conformance.repro.bundle import Given
from conformance.workloads.reading_plan import PlannedWindow, order_of, planned_windows, turns_of
from conformance.workloads.workload import Workload

_WIDTH = 116


def literal(value: Any) -> str:
    """The expression for a value; records become `SimpleNamespace`s."""
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, torch.device):
        return f"torch.device({json.dumps(str(value))})"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{literal(key)}: {literal(one)}' for key, one in value.items())}}}"
    if isinstance(value, list) and _counts_on(value):
        return f"[*range({value[0]}, {value[-1] + 1})]"
    if isinstance(value, list):
        return f"[{', '.join(map(literal, value))}]"
    if isinstance(value, tuple):
        return f"({', '.join(map(literal, value))}{',' * (len(value) == 1)})"
    if is_dataclass(value):
        named = {field.name: getattr(value, field.name) for field in fields(value)}
        if isinstance(value, OptimizerSettings):
            named["arguments"] = value.arguments
        return f"SimpleNamespace({', '.join(f'{name}={literal(one)}' for name, one in named.items())})"
    # A float is read back bit-identical.
    return f'float("{value}")' if repr(value) in ("inf", "-inf", "nan") else str(value)


def _counts_on(numbers: list[Any]) -> bool:
    """Whether the numbers are consecutive, and a range is shorter."""
    are_numbers = len(numbers) > 4 and all(type(one) is int for one in numbers)
    return are_numbers and numbers == list(range(numbers[0], numbers[0] + len(numbers)))


class _Printer(PrettyPrinter):
    """Wraps long values, and writes each as `literal` does."""

    def format(self, object: object, context: dict[int, int], maxlevels: int, level: int) -> tuple[str, bool, bool]:
        return literal(object), True, False


def assigned(name: str, value: Any, comment: str = "") -> str:
    """``name = value``, in as many lines as needed, with a comment above it."""
    text = _Printer(width=_WIDTH - len(name), compact=True, sort_dicts=False).pformat(value)
    line = f"{name} = {text}"
    return f"# {comment}\n{line}" if comment else line


_OPTIMIZERS = {"sgd": "torch.optim.SGD", "adamw": "torch.optim.AdamW", "adagrad": "torch.optim.Adagrad"}

_OF_WINDOWS = "By epoch and rank: for each optimizer step its micro-batches, as numbers of samples."


def cut(spec: Mapping[str, Any], windows: int) -> dict[str, Any]:
    """The same case with only its first windows."""
    orders, epochs, left = list(spec["orders"]), list[int](), windows
    for order in spec["epochs"]:
        length = _length(spec, order)
        if left > 0:
            epochs.append(order if length <= left else len(orders))
        if 0 < left < length:
            orders.append([share[: left * spec["accumulation"]] for share in orders[order]])
        left -= length
    return {**spec, "orders": orders, "epochs": epochs, "steps": windows}


def whole_epochs(spec: Mapping[str, Any], windows: int) -> int:
    ends = accumulate(_length(spec, order) for order in spec["epochs"])
    return next(end for end in ends if end >= windows)


def _length(spec: Mapping[str, Any], order: int) -> int:
    """The number of windows of an epoch in this order."""
    accumulation: int = spec["accumulation"]
    return max(-(-len(share) // accumulation) for share in spec["orders"][order])


def settings(spec: Mapping[str, Any], workload: Workload, *, keeps_all: bool) -> dict[str, Given]:
    """Data and settings. Samples that no window uses are left out, unless the script ``keeps_all``."""
    names = ("x", "y", "weight") if spec["loss"] == "weighted" else ("x", "y")
    columns = [[spec["samples"][name][number] for number in _kept(spec, keeps_all=keeps_all)] for name in names]
    task = Task(dict(spec), 0)
    further: list[dict[str, Any]] = [{}, *spec["groups"]]
    of = "each sample's inputs, and its target" + (", and its weight" if len(names) > 2 else "")
    windows = _windows(spec, keeps_all=keeps_all)
    return {
        "WORLD_SIZE": Given(assigned("WORLD_SIZE", spec["world_size"])),
        "SAMPLES": Given(assigned("SAMPLES", columns, f"By column: {of}.")),
        "WINDOWS": Given(assigned("WINDOWS", windows, _OF_WINDOWS)),
        "START": Given(assigned("START", _start(spec, workload), "By rank: the parameters at the start.")),
        "USED": Given(assigned("USED", {one.name: [*one.used] for one in workload.model.tensors if one.used})),
        "OPTIMIZER": Given(f"OPTIMIZER = {_OPTIMIZERS[spec['optimizer']['kind']]}"),
        "GROUPS": Given(assigned("GROUPS", [dict(group.arguments) for group in task.optimizer_settings.groups])),
        "SCHEDULES": Given(
            assigned("SCHEDULES", [group.get("schedule") or spec["schedule"] or [1.0] for group in further])
        ),
    }


def orders(spec: Mapping[str, Any]) -> dict[str, Given]:
    """The orders of samplers, with two extra epochs for trainers that number epochs differently."""
    return {
        "DROP_LAST": Given(assigned("DROP_LAST", spec["sampler"] == "drop")),
        "ORDERS": Given(assigned("ORDERS", _orders(spec), "By epoch and rank: the numbers of the samples.")),
        "TURNS": Given(assigned("TURNS", _turns(spec))),
    }


def _planned(spec: Mapping[str, Any]) -> list[list[PlannedWindow]]:
    return [planned_windows(spec, rank) for rank in range(spec["world_size"])]


def _kept(spec: Mapping[str, Any], *, keeps_all: bool) -> list[int]:
    """The numbers of the samples in the script."""
    if keeps_all:
        return list(range(len(spec["samples"]["y"])))
    return sorted(
        {number for own in _planned(spec) for window in own for one in window.micro_batches for number in one}
    )


def _windows(spec: Mapping[str, Any], *, keeps_all: bool) -> list[Any]:
    position = {number: at for at, number in enumerate(_kept(spec, keeps_all=keeps_all))}
    return [
        [
            [
                [[position[number] for number in one] for one in window.micro_batches]
                for window in own
                if window.epoch == epoch
            ]
            for own in _planned(spec)
        ]
        for epoch in range(len(spec["epochs"]))
    ]


def _orders(spec: Mapping[str, Any]) -> list[Any]:
    ranks = range(spec["world_size"])
    return [[order_of(spec, rank, number) for rank in ranks] for number in range(_count(spec))]


def _turns(spec: Mapping[str, Any]) -> list[list[int]]:
    return [list(turns_of(spec, number)) for number in range(_count(spec))]


def _count(spec: Mapping[str, Any]) -> int:
    return len(spec["epochs"]) + 2 if len(spec["orders"]) > 1 else 1


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
