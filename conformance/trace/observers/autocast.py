"""Autocast regions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from conformance.trace.emit import Recording
from conformance.trace.seams.patching import Seams, replaced


def observe(recording: Recording) -> Seams:
    """Records where an enabled autocast begins and ends, except where checkpointing repeats it in a backward."""

    def note(event: str, autocast: torch.autocast) -> None:
        if autocast._enabled and not recording.is_inside("backward"):
            dtype = str(autocast.fast_dtype).removeprefix("torch.")
            recording.note(event, device=autocast.device, dtype=dtype, enabled=True)

    def enter(original: Callable[..., Any], autocast: torch.autocast) -> Any:
        result = original(autocast)
        note("autocast_enter", autocast)
        return result

    def leave(original: Callable[..., Any], autocast: torch.autocast, *error: Any) -> Any:
        result = original(autocast, *error)
        note("autocast_exit", autocast)
        return result

    yield replaced(torch.autocast, "__enter__", enter)
    yield replaced(torch.autocast, "__exit__", leave)
