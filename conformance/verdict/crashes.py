"""What in a case may have made a trainer crash, in words."""

from __future__ import annotations

import re
from collections.abc import Iterator

from conformance.trace.words import enumerated
from conformance.workloads.model import Linear, Model
from conformance.workloads.workload import Workload


def parameters_without_gradients(model: Model) -> Iterator[str]:
    """Which parameters may have no gradient, on which a trainer may have crashed."""
    frozen = [tensor.name for tensor in model.tensors if tensor.frozen]
    unused = [tensor.name for tensor in model.tensors if tensor.block is not None]
    if frozen:
        yield f"in this case {enumerated(frozen)} are frozen: they have no gradient, and `.grad` is None"
    if unused:
        yield f"in this case some samples do not use {enumerated(unused)}, so that `.grad` may be None"


def number_of_parameters(model: Model, headline: str) -> str:
    """How many parameters there are, if a trainer crashed on what may be another number of them than it expected."""
    names = [tensor.name for tensor in model.tensors]
    count = len(names)
    otherwise = rf"too many values to unpack (?!\(expected {count}\b)|not enough values to unpack .*got {count}\)"
    if not re.search(otherwise, headline):
        return ""
    others = "" if model.name == Linear.name else ", or declare the `models` that the trainer can take"
    return (
        f"; in this case the model has {count} parameter{'s' if count > 1 else ''}, {enumerated(names)}: "
        f"take as many as `model.parameters()` has{others}"
    )


def parts_of_batches(workload: Workload, headline: str) -> str:
    """How many there are, if a trainer may have crashed on the weights."""
    if workload.loss == "weighted" and "too many values to unpack (expected 2" in headline:
        return "; in this case the loss is weighted, and a batch is unpacked as `inputs, targets, weights = batch`"
    if workload.loss != "weighted" and "not enough values to unpack (expected 3, got 2)" in headline:
        return "; in this case the loss is not weighted, and a batch is unpacked as `inputs, targets = batch`"
    return ""
