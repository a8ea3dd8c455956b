"""The kinds of event that a rank reports, and how their values are written.

Every event is a plain dict {"event": kind, "rank": r, "seq": n, ...}; `seq` counts a rank's events from 0.
Values are what JSON holds; a float is written exactly (the float64 of a float32), one that is not finite as a
string.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TypeAlias

import torch

Number: TypeAlias = float | str | None
Event: TypeAlias = dict[str, object]

KINDS: dict[str, str] = {
    "started": "the process runs: {pid}",
    "topology": (
        "what was reached, noted at the first optimizer step or at the end: {world_size, rank_reached, via}; "
        "`via` is 'torch.distributed', 'horovod', or null when neither was initialised"
    ),
    "forward": (
        "a forward of the task's model in training mode with gradients enabled: {forward, rows}; `forward` "
        "counts from 0, `rows` are indices into the distinct rows of samples.x in order of first appearance, "
        "null for a row that is not among them"
    ),
    "collective": (
        "this rank entered a collective: {op, bytes, via, phase}; `bytes` is what this rank puts in, `via` "
        "'c10d' or 'horovod', `phase` 'construction' until the first training forward, then 'training'"
    ),
    "state_init": (
        "an optimizer step before the first training forward, on no gradients but zeros, as Horovod's "
        "broadcast_optimizer_state takes one: {weights}, after it"
    ),
    "step": (
        "an optimizer step that was applied: {step, forwards, gradients, weights, lr, scale}; `step` counts "
        "from 0, `forwards` those so far; `gradients` as the optimizer saw them, `weights` after the step, "
        "flattened weight then bias, null where there is none; `scale` is the loss scale, null unless a "
        "GradScaler that is enabled called the step"
    ),
    "skip": (
        "an enabled GradScaler was asked to step and did not: {forwards, scale, gradients_finite, gradients, weights}"
    ),
    "update": (
        "GradScaler.update of an enabled scaler: {scale_before, scale_after, growth_factor, backoff_factor, "
        "growth_interval}, the last three being the scaler's own"
    ),
    "foreign_optimizer": (
        "an optimizer stepped that holds no parameter of the task's model, noted once for each: {optimizer, shapes}"
    ),
    "finished": "the trainer's function returned: {weights}",
    "raised": "the trainer's function raised: {type, message, traceback}",
}


def number(value: float) -> Number:
    """`value`, or "nan", "inf", "-inf", which JSON has no numbers for."""
    return value if math.isfinite(value) else str(value)


def values(tensors: Iterable[torch.Tensor | None], sizes: Iterable[int]) -> list[Number]:
    """All elements of `tensors`, one after the other; a missing tensor is written as null, `size` times."""
    flat: list[Number] = []
    for tensor, size in zip(tensors, sizes, strict=True):
        if tensor is None:
            flat.extend([None] * size)
        else:
            flat.extend(number(value) for value in tensor.detach().double().flatten().tolist())
    return flat
