"""The random numbers that the watched model draws: the generator's state before and after each of its forwards."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import torch

from conformance.adapter.models import WithDropout
from conformance.trace.emit import Recording
from conformance.trace.seams.patching import Seams, replaced


def observe(recording: Recording) -> Seams:
    """Records `draw`, of forwards that draw. A recomputed forward draws, too."""

    def run(original: Callable[..., Any], module: WithDropout, inputs: torch.Tensor) -> Any:
        before = _state()
        output = original(module, inputs)
        if (after := _state()) != before:
            recording.note("draw", before=before, after=after)
        return output

    if recording.watched.kind is WithDropout:
        yield replaced(WithDropout, "forward", run)


def _state() -> str:
    """A digest of the generator's state. The cases of this model run on CPUs alone."""
    return hashlib.blake2b(torch.get_rng_state().numpy().tobytes(), digest_size=8).hexdigest()
