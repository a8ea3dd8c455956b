"""GradScaler: scaling, unscaling, steps that it left out, and updates of the scale."""

from __future__ import annotations

from typing import Any

import torch

from conformance.trace.seams.patching import Seams, replaced, with_subclasses
from conformance.trace.state.loss_scale import mark
from conformance.watch import records
from conformance.watch.recording.recording import Recording

Scaler = torch.amp.GradScaler


def observe(recording: Recording) -> Seams:
    """Notes what enabled scalers do."""

    def scale(original: Any, scaler: Any, outputs: Any) -> Any:
        if not begins(scaler, "scale"):
            return original(scaler, outputs)
        recording.numbers.of("scaler", scaler)
        with _Inside(recording, "scale"):
            result = original(scaler, outputs)
        mark(result, scaler.get_scale())
        return result

    def unscale(original: Any, scaler: Any, optimizer: Any) -> Any:
        if not begins(scaler, "unscale"):
            return original(scaler, optimizer)
        recording.note(records.Unscaled(recording.optimizer(optimizer), scaler.get_scale(), recording.site()))
        with _Inside(recording, "unscale"):
            return original(scaler, optimizer)

    def step(original: Any, scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        if not begins(scaler, "scaler step"):
            return original(scaler, optimizer, *args, **kwargs)
        number, factor = recording.optimizer(optimizer), scaler.get_scale()
        before = recording.steps.get(number, 0)
        with _Inside(recording, "scaler step"):
            result = original(scaler, optimizer, *args, **kwargs)
        if recording.steps.get(number, 0) == before:
            recording.note(records.Skipped(number, factor, recording.site()))
            recording.flush()
        return result

    def update(original: Any, scaler: Any, *args: Any, **kwargs: Any) -> Any:
        if not begins(scaler, "update"):
            return original(scaler, *args, **kwargs)
        before = scaler.get_scale()
        with _Inside(recording, "update"):
            result = original(scaler, *args, **kwargs)
        recording.note(records.Updated(before, scaler.get_scale(), recording.site()))
        return result

    def begins(scaler: Any, call: str) -> bool:
        return scaler.is_enabled() and call not in recording.inside

    around = {"scale": scale, "unscale_": unscale, "step": step, "update": update}
    for owner in with_subclasses(Scaler):
        for name in around.keys() & vars(owner).keys():
            yield replaced(owner, name, around[name])


class _Inside:
    def __init__(self, recording: Recording, what: str) -> None:
        self._inside, self._what = recording.inside, what

    def __enter__(self) -> None:
        self._inside.append(self._what)

    def __exit__(self, *error: object) -> None:
        self._inside.remove(self._what)
