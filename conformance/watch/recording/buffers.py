"""Buffers: what models keep beside parameters, such as BatchNorm's running means."""

from __future__ import annotations

import torch

from conformance.watch import records
from conformance.watch.recording.recording import Recording

_STEPS = 3
"""Steps after which to look, once."""


def note_buffers(recording: Recording) -> None:
    """Note `Buffers` once, if there are any."""
    if sum(recording.steps.values()) != _STEPS:
        return
    buffers = {name: one for root in list(recording.roots) for name, one in root.named_buffers() if one.numel()}
    if buffers:
        take, finish = recording.sketching.take, recording.sketching.finish
        sketches = [finish([take(getattr(one, "_local_tensor", one))]).cpu() for one in buffers.values()]
        recording.note(records.Buffers([name.removeprefix("module.") for name in buffers], torch.cat(sketches)))
