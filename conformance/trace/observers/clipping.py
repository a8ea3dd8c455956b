"""Clipping of gradients by torch's functions, and the norms that are computed without clipping."""

from __future__ import annotations

from collections.abc import Callable
from types import GeneratorType
from typing import Any

import torch
from torch.nn.utils import clip_grad

from conformance.trace.emit import Recording
from conformance.trace.seams.patching import Seams, replaced_inside
from conformance.trace.values import number

Original = Callable[..., Any]


def observe(recording: Recording) -> Seams:
    """Records clipping: only the outermost call, because clipping by norm itself calls a norm and a scaling."""

    def by_norm(
        original: Original, parameters: Any, max_norm: float, norm_type: float = 2.0, *args: Any, **kwargs: Any
    ) -> Any:
        return clip(original, parameters, (max_norm, norm_type, *args), kwargs, kind="norm", norm_type=norm_type)

    def with_norm(
        original: Original, parameters: Any, max_norm: float, total_norm: Any, *args: Any, **kwargs: Any
    ) -> Any:
        return clip(original, parameters, (max_norm, total_norm, *args), kwargs, kind="norm", norm=total_norm)

    def by_value(original: Original, parameters: Any, clip_value: float, *args: Any, **kwargs: Any) -> Any:
        return clip(original, parameters, (clip_value, *args), kwargs, kind="value")

    def total_norm(original: Original, tensors: Any, *args: Any, **kwargs: Any) -> Any:
        if recording.is_inside("clip"):
            return original(tensors, *args, **kwargs)
        tensors, given = _kept(tensors)
        recording.look()
        result = original(given, *args, **kwargs)
        owners = recording.watched.owners(tensors)
        if owners:
            recording.note("norm", norm=number(float(result)), parameters=owners)
        return result

    def clip(
        original: Original,
        parameters: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        kind: str,
        norm_type: float | None = None,
        norm: Any = None,
    ) -> Any:
        if recording.is_inside("clip"):
            return original(parameters, *args, **kwargs)
        parameters, given = _kept(parameters)
        numbers = recording.watched.numbers(parameters)
        recording.look()
        gradients = recording.watched.gradients(recording.watched.current, only=numbers) if numbers else None
        with recording.inside("clip"):
            result = original(given, *args, **kwargs)
        # Of no parameters at all: a generator of them was used up.
        if numbers or not parameters:
            total = result if norm is None else norm
            recording.note(
                "clip",
                kind=kind,
                threshold=number(float(args[0])),
                norm_type=None if norm_type is None else number(float(norm_type)),
                norm=None if total is None else number(float(total)),
                parameters=numbers,
                gradients=gradients,
            )
            recording.accounted()
        return result

    yield replaced_inside(clip_grad.clip_grad_norm_, by_norm)
    yield replaced_inside(clip_grad.clip_grad_value_, by_value)
    yield replaced_inside(clip_grad._clip_grads_with_norm_, with_norm)
    yield replaced_inside(clip_grad._get_total_norm, total_norm)


def _kept(tensors: Any) -> tuple[list[torch.Tensor], Any]:
    """The tensors of a list or a single tensor, and what to pass on: for a generator, a fresh one."""
    if isinstance(tensors, torch.Tensor):
        return [tensors], tensors
    kept = list(tensors)
    return kept, (tensor for tensor in kept) if isinstance(tensors, GeneratorType) else kept
