"""Clipping by torch's functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from inspect import GEN_CLOSED, getgeneratorstate, isgenerator, signature
from typing import Any

import torch
from torch.nn.utils import clip_grad

from conformance.trace.seams.patching import Seams, replaced_inside
from conformance.watch import records
from conformance.watch.recording.later import later
from conformance.watch.recording.parameters import Known
from conformance.watch.recording.recording import Recording

_KINDS = {"clip_grad_norm_": "norm", "_clip_grads_with_norm_": "norm", "clip_grad_value_": "value"}
"""The functions that clip, each with what it clips by."""


def observe(recording: Recording) -> Seams:
    """Notes `Clipped` for each outermost call, and before it `Limited` where it is by value."""
    for name in _KINDS:
        function = getattr(clip_grad, name)
        yield replaced_inside(function, around(recording, function))


def around(recording: Recording, function: Callable[..., Any]) -> Callable[..., Any]:
    """What notes the calls of a function that clips, of torch or with the same parameters."""
    kind, parameters_of = _KINDS[function.__name__], signature(function)

    def sketches(limited: list[tuple[Known, torch.Tensor]]) -> torch.Tensor:
        return recording.parameters.sketches([(known.sample, gradient) for known, gradient in limited])

    def clip(original: Any, *args: Any, **kwargs: Any) -> Any:
        if "clip" in recording.inside:
            return original(*args, **kwargs)
        call = parameters_of.bind(*args, **kwargs)
        given = call.arguments
        used_up = _is_used_up(given["parameters"])
        if not isinstance(given["parameters"], torch.Tensor):
            # It may be a generator, which can be gone through once.
            given["parameters"] = list(given["parameters"])
        original.instead(*call.args, **call.kwargs)
        tensors = given["parameters"]
        tensors = [tensors] if isinstance(tensors, torch.Tensor) else tensors
        strange = _strange(recording, tensors)
        by_value = kind == "value" and recording.is_looking
        limited = recording.parameters.gradients(tensors) if by_value else []
        before = sketches(limited)
        recording.inside.append("clip")
        try:
            result = original(*call.args, **call.kwargs)
        finally:
            recording.inside.remove("clip")
        if limited:
            numbers, samples = [known.number for known, _ in limited], [known.sample for known, _ in limited]
            recording.note(records.Limited(numbers, before, sketches(limited), samples))
        recording.note(
            records.Clipped(
                kind,
                recording.parameters.numbers(tensors),
                float(given["clip_value" if kind == "value" else "max_norm"]),
                _number(given.get("total_norm", result)),
                len(tensors),
                recording.site(),
                used_up,
                strange,
                recording.within,
            )
        )
        return result

    return clip


def _is_used_up(parameters: Any) -> bool | None:
    if isgenerator(parameters):
        return getgeneratorstate(parameters) == GEN_CLOSED
    if isinstance(parameters, filter | map):
        # What it goes through, after its function.
        made_of: Any = parameters.__reduce__()[1]
        return True if any(map(_is_used_up, made_of[1:])) else None
    return None if isinstance(parameters, Iterator) else False


def _strange(recording: Recording, tensors: Sequence[torch.Tensor]) -> list[list[int]]:
    """The shapes of those that wait for gradients that never come; none if a single one has its own, or is known."""
    if any(one.grad is not None or not one.requires_grad for one in tensors) or recording.parameters.numbers(tensors):
        return []
    return [list(one.shape) for one in tensors]


def _number(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return None
    if hasattr(value, "to_local"):
        if any(not placement.is_replicate() for placement in value.placements):  # type: ignore[attr-defined]
            # To sum it up would take a collective.
            return None
        value = value.to_local()
    return later(float, value)
