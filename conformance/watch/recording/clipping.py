"""Clipping by torch's functions."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from functools import partial
from typing import Any

import torch

from conformance.trace.seams.patching import Seams
from conformance.trace.seams.probes import Clip, clips
from conformance.watch import records
from conformance.watch.recording.later import later
from conformance.watch.recording.parameters import Known
from conformance.watch.recording.recording import Recording


def observe(recording: Recording) -> Seams:
    """Notes `Clipped` for each outermost call, and before it `Limited` where it is by value."""
    yield from clips(recording, partial(noted, recording))


def noted(recording: Recording, call: Clip) -> Generator[None, Any]:
    """Notes one call."""

    def sketches(limited: list[tuple[Known, torch.Tensor]]) -> torch.Tensor:
        return recording.parameters.sketches([(known.sample, gradient) for known, gradient in limited])

    strange = _strange(recording, call.parameters)
    by_value = call.kind == "value" and recording.is_looking
    limited = recording.parameters.gradients(call.parameters) if by_value else []
    before = sketches(limited)
    result = yield
    if limited:
        numbers, samples = [known.number for known, _ in limited], [known.sample for known, _ in limited]
        recording.note(records.Limited(numbers, before, sketches(limited), samples))
    recording.note(
        records.Clipped(
            call.kind,
            recording.parameters.numbers(call.parameters),
            float(call.limit),
            _number(call.norm(result)),
            len(call.parameters),
            recording.site(),
            call.is_used_up,
            strange,
            recording.within,
        )
    )


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
