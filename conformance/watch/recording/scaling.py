"""GradScaler: scaling, unscaling, steps that it left out, and updates of the scale."""

from __future__ import annotations

from typing import Any

import torch

from conformance.trace.seams.patching import Seams
from conformance.trace.seams.probes import scaling
from conformance.trace.state.loss_scale import mark
from conformance.watch import records
from conformance.watch.recording.parameters import own, sample_of
from conformance.watch.recording.recording import Recording
from conformance.watch.recording.steps import THEN_EVERY
from conformance.watch.sizes import WHOLE


def observe(recording: Recording) -> Seams:
    """Notes what enabled scalers do."""

    def scale(original: Any, scaler: Any, outputs: Any) -> Any:
        recording.numbers.of("scaler", scaler)
        result = original(scaler, outputs)
        mark(result, scaler.get_scale())
        return result

    def unscale(original: Any, scaler: Any, optimizer: Any) -> Any:
        sizes = _sizes(optimizer) if looks(optimizer) else (None, None)
        number, factor = recording.optimizer(optimizer), scaler.get_scale()
        recording.note(records.Unscaled(number, factor, recording.site(), *sizes, within=recording.within))
        return original(scaler, optimizer)

    def step(original: Any, scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        number, factor = recording.optimizer(optimizer), scaler.get_scale()
        before = recording.steps.get(number, 0)
        result = original(scaler, optimizer, *args, **kwargs)
        if recording.steps.get(number, 0) == before:
            recording.note(records.Skipped(number, factor, recording.site()))
            recording.flush()
        return result

    def update(original: Any, scaler: Any, *args: Any, **kwargs: Any) -> Any:
        before = scaler.get_scale()
        result = original(scaler, *args, **kwargs)
        recording.note(records.Updated(before, scaler.get_scale(), recording.site()))
        return result

    def looks(optimizer: Any) -> bool:
        """As weights are compared: at first each time, then before every tenth step."""
        count = recording.steps.get(recording.optimizer(optimizer), 0)
        looked = count // recording.settings.every
        return recording.settings.looks_at(count) and (sample_of(looked) == WHOLE or looked % THEN_EVERY == 0)

    yield from scaling(recording, {"scale": scale, "unscale_": unscale, "step": step, "update": update})


def _sizes(optimizer: Any) -> tuple[float | None, float | None]:
    """The largest element and the 2-norm of an optimizer's gradients, of what this rank has of them."""
    gradients = [one.grad for group in optimizer.param_groups for one in group["params"] if one.grad is not None]
    dense = [own(gradient.detach()) for gradient in gradients if not gradient.is_sparse]
    dense = [gradient for gradient in dense if gradient.numel()]
    if not dense or len(dense) < len(gradients) or len({gradient.device for gradient in dense}) > 1:
        return None, None
    largest = torch.stack([one.double() for one in torch._foreach_norm(dense, float("inf"))]).amax()
    norm = torch.linalg.vector_norm(torch.stack([one.double() for one in torch._foreach_norm(dense, 2.0)]))
    sizes = torch.stack([largest, norm]).tolist()
    return sizes[0], sizes[1]
