"""Weights before a backward pass, now and then: ranks that do not step together may have them all the same."""

from __future__ import annotations

from typing import Any

import torch

from conformance.trace.seams.patching import Seams, replaced
from conformance.watch import records
from conformance.watch.recording.recording import Recording
from conformance.watch.sizes import WHOLE


def note_weights(recording: Recording, calls: int) -> None:
    """Note `Weighed` after 0 to 8 backward passes, after 10, 12, 14, 16, 20, 24 ..., of all that there are or of those
    with these calls, if there are other ranks."""
    if not recording.is_with_others:
        return
    done = recording.passes[calls]
    recording.passes[calls] += 1
    if _is_time(recording.backwards) or _is_time(done):
        _note(recording, last=False)


def _is_time(done: int) -> bool:
    return not done & ((1 << max(0, done.bit_length() - 3)) - 1)


def observe(recording: Recording) -> Seams:
    """Notes them for the last time before a process leaves its group."""

    def destroy(original: Any, *args: Any, **kwargs: Any) -> Any:
        if recording.is_with_others:
            _note(recording, last=True)
        return original(*args, **kwargs)

    if torch.distributed.is_available():
        yield replaced(torch.distributed, "destroy_process_group", destroy)


def _note(recording: Recording, *, last: bool) -> None:
    weighed = [(known, one.data) for known, one in recording.parameters.all() if not one.is_sparse]
    numbers = [known.number for known, _ in weighed]
    if numbers:
        values = recording.parameters.sketches([(WHOLE, weights) for _, weights in weighed])
        recording.note(records.Weighed(numbers, values, last))
