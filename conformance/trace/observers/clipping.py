"""Clipping of gradients by torch's functions, and the norms that are computed without clipping."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from types import GeneratorType
from typing import Any

import torch
from torch.nn.utils import clip_grad

from conformance.trace.emit import Recording
from conformance.trace.seams.guarding import Original
from conformance.trace.seams.patching import Seams, replaced_inside
from conformance.trace.values import Number, elements, number

KINDS = {"clip_grad_norm_": "norm", "_clip_grads_with_norm_": "norm", "clip_grad_value_": "value"}
"""The functions that clip, each with what it clips by."""

_SIGNATURES = {name: signature(getattr(clip_grad, name)) for name in KINDS}


def observe(recording: Recording) -> Seams:
    """Records clipping: only the outermost call, because clipping by norm itself calls a norm and a scaling."""

    def clipping(name: str) -> Callable[..., Any]:
        def clip(original: Original, *args: Any, **kwargs: Any) -> Any:
            if recording.is_inside("clip"):
                return original(*args, **kwargs)
            call = _SIGNATURES[name].bind(*args, **kwargs)
            call.apply_defaults()
            given = call.arguments
            parameters, given["parameters"] = _kept(given["parameters"])
            original.instead(*call.args, **call.kwargs)
            numbers = recording.watched.numbers(parameters)
            recording.look()
            gradients = recording.watched.gradients(recording.watched.current, only=numbers) if numbers else None
            with recording.inside("clip"):
                result = original(*call.args, **call.kwargs)
            # Of no parameters at all: a generator of them was used up.
            if numbers or not parameters:
                recording.note(
                    "clip",
                    kind=KINDS[name],
                    threshold=_number(given["clip_value" if KINDS[name] == "value" else "max_norm"]),
                    norm_type=_number(given.get("norm_type")),
                    norm=_number(given.get("total_norm", result)),
                    parameters=numbers,
                    gradients=gradients,
                )
                recording.accounted()
            return result

        return clip

    def total_norm(original: Original, tensors: Any, *args: Any, **kwargs: Any) -> Any:
        if recording.is_inside("clip"):
            return original(tensors, *args, **kwargs)
        tensors, given = _kept(tensors)
        original.instead(given, *args, **kwargs)
        recording.look()
        result = original(given, *args, **kwargs)
        owners = recording.watched.owners(tensors)
        if owners:
            recording.note("norm", norm=_number(result), parameters=owners)
        return result

    for name in KINDS:
        yield replaced_inside(getattr(clip_grad, name), clipping(name))
    yield replaced_inside(clip_grad._get_total_norm, total_norm)


def _number(value: Any) -> Number:
    if isinstance(value, torch.Tensor):
        # To read a DTensor that is not summed up yet would take a collective.
        return next(iter(elements(value)), None)
    return None if value is None else number(float(value))


def _kept(tensors: Any) -> tuple[list[torch.Tensor], Any]:
    """The tensors of a list or a single tensor, and what to pass on: for a generator, a fresh one."""
    if isinstance(tensors, torch.Tensor):
        return [tensors], tensors
    kept = list(tensors)
    return kept, (tensor for tensor in kept) if isinstance(tensors, GeneratorType) else kept
