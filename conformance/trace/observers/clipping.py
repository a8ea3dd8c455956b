"""Clipping of gradients by torch's functions, and the norms that are computed without clipping."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import torch
from torch.nn.utils import clip_grad

from conformance.trace.emit import Recording
from conformance.trace.seams.guarding import Original
from conformance.trace.seams.patching import Seams, replaced_inside
from conformance.trace.seams.probes import Clip, clips, kept
from conformance.trace.values import Number, elements, number


def observe(recording: Recording) -> Seams:
    """Records clipping, and norms that are computed without it."""

    def clip(call: Clip) -> Generator[None, Any]:
        numbers = recording.watched.numbers(call.parameters)
        recording.look()
        gradients = recording.watched.gradients(recording.watched.current, only=numbers) if numbers else None
        result = yield
        # Of no parameters at all: a generator of them was used up.
        if numbers or not call.parameters:
            recording.note(
                "clip",
                kind=call.kind,
                threshold=_number(call.limit),
                norm_type=_number(call.given.get("norm_type")),
                norm=_number(call.norm(result)),
                parameters=numbers,
                gradients=gradients,
            )
            recording.accounted()

    def total_norm(original: Original, tensors: Any, *args: Any, **kwargs: Any) -> Any:
        if recording.is_inside("clip"):
            return original(tensors, *args, **kwargs)
        tensors, given = kept(tensors)
        original.instead(given, *args, **kwargs)
        recording.look()
        result = original(given, *args, **kwargs)
        owners = recording.watched.owners(tensors)
        if owners:
            recording.note("norm", norm=_number(result), parameters=owners)
        return result

    yield from clips(recording, clip)
    yield replaced_inside(clip_grad._get_total_norm, total_norm)


def _number(value: Any) -> Number:
    if isinstance(value, torch.Tensor):
        # To read a DTensor that is not summed up yet would take a collective.
        return next(iter(elements(value)), None)
    return None if value is None else number(float(value))
