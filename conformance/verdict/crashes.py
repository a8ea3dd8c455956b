"""What a trainer may have crashed on: what a case has, beside what the trainer expected."""

from __future__ import annotations

import re
from collections.abc import Iterator

from conformance.trace.words import enumerated
from conformance.workloads.model import Linear, Model
from conformance.workloads.workload import Workload

_OF_SHAPES = re.compile(
    r"shape|size of tensor|dimension|out of (range|bounds)|forward\(\)|scalar type|target size", re.I
)
_OF_BATCHES = re.compile(r"batch|data|loader|next\(", re.I)


def what_there_is(workload: Workload, message: str, line: str) -> str:
    """Of what is not as the trainer expected, in words that follow its ``message``. ``line``: the text of that in which
    it crashed."""
    if parts := _parts_of_batches(workload, message):
        # A line that unpacks a batch is not about parameters.
        return parts if _OF_BATCHES.search(line) else parts + _parameters_of(workload.model, message)
    if "to unpack (expected 1" in message and _OF_BATCHES.search(line):
        return _unpacked(workload)
    if _OF_SHAPES.search(message):
        return (
            f"; in this case the model takes inputs of (m, {workload.model.features}) alone, and predictions and "
            "targets are (m, 1)"
        )
    return _parameters_of(workload.model, message)


def parameters_without_gradients(model: Model) -> Iterator[str]:
    """Which parameters may have no gradient, on which a trainer may have crashed."""
    frozen = [tensor.name for tensor in model.tensors if tensor.frozen]
    unused = [tensor.name for tensor in model.tensors if tensor.block is not None]
    if frozen:
        yield f"in this case {enumerated(frozen)} are frozen: they have no gradient, and `.grad` is None"
    if unused:
        yield f"in this case some samples do not use {enumerated(unused)}, so that `.grad` may be None"


def _parameters_of(model: Model, message: str) -> str:
    """How many parameters there are, if a trainer crashed on what may be another number of them than it expected."""
    names = [tensor.name for tensor in model.tensors]
    count = len(names)
    otherwise = rf"too many values to unpack (?!\(expected {count}\b)|not enough values to unpack .*got {count}\)"
    if not re.search(otherwise, message):
        return ""
    others = "" if model.name == Linear.name else ", or declare the `models` that the trainer can take"
    return (
        f"; in this case the model has {count} parameter{'s' if count > 1 else ''}, {enumerated(names)}: "
        f"take as many as `model.parameters()` has{others}"
    )


def _parts_of_batches(workload: Workload, message: str) -> str:
    """How many there are, if a trainer may have crashed on the weights."""
    if workload.loss == "weighted":
        return _unpacked(workload) if "too many values to unpack (expected 2" in message else ""
    return _unpacked(workload) if re.search(r"not enough values to unpack \(expected [3-9], got 2\)", message) else ""


def _unpacked(workload: Workload) -> str:
    if workload.loss == "weighted":
        return "; in this case the loss is weighted, and a batch is unpacked as `inputs, targets, weights = batch`"
    return "; in this case the loss is not weighted, and a batch is unpacked as `inputs, targets = batch`"
