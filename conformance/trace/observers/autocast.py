"""Autocast regions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from conformance.trace.emit import Recording
from conformance.trace.seams.patching import Seams, replaced


def observe(recording: Recording) -> Seams:
    """Records where an enabled autocast begins and ends, except where checkpointing repeats it in a backward."""

    def noting(event: str) -> Callable[..., Any]:
        def around(original: Callable[..., Any], autocast: torch.autocast, *args: Any) -> Any:
            result = original(autocast, *args)
            if autocast._enabled and not recording.is_inside("backward"):
                dtype = str(autocast.fast_dtype).removeprefix("torch.")
                caches = {} if autocast._cache_enabled or event == "autocast_exit" else {"caches": False}
                recording.note(event, device=autocast.device, dtype=dtype, enabled=True, **caches)
            return result

        return around

    yield replaced(torch.autocast, "__enter__", noting("autocast_enter"))
    yield replaced(torch.autocast, "__exit__", noting("autocast_exit"))
