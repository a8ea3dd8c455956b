"""What models keep and no optimizer trains: buffers, such as BatchNorm's running means, and frozen parameters."""

from __future__ import annotations

import torch

from conformance.watch import records
from conformance.watch.recording.parameters import own
from conformance.watch.recording.recording import Recording

_STEPS = 3
"""Steps after which to look, once."""

_SAMPLE = 0
"""Of what is large, as a frozen model may be."""


def note_buffers(recording: Recording) -> None:
    """Note `Buffers` once, if there are any."""
    if sum(recording.steps.values()) != _STEPS:
        return
    roots = list(recording.roots)
    buffers = {name: own(one) for root in roots for name, one in root.named_buffers() if _is_here(one)}
    # Of those that are split over ranks, each has a part of its own.
    parameters = [(name, one) for root in roots for name, one in root.named_parameters() if _is_here(one)]
    frozen = {name: one for name, one in parameters if not one.requires_grad and not hasattr(one, "placements")}
    kept = buffers | frozen
    if kept:
        take, finish = recording.sketching.take, recording.sketching.finish
        sketches = [finish([take(one, _SAMPLE)]).cpu() for one in kept.values()]
        names = [name.removeprefix("module.") for name in kept]
        recording.note(records.Buffers(names, torch.cat(sketches), len(frozen)))


def _is_here(tensor: torch.Tensor) -> bool:
    return bool(tensor.numel()) and not tensor.is_meta
