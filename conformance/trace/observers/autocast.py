"""Autocast regions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from conformance.trace.seams.patching import replaced

if TYPE_CHECKING:
    from conformance.trace.recorder import Recorder


@contextmanager
def observing_autocast(recorder: Recorder) -> Iterator[None]:
    """Have it noted when an enabled autocast begins and ends; not where checkpointing repeats it in a backward."""

    def note(event: str, autocast: torch.autocast) -> None:
        if autocast._enabled and not recorder.is_doing("backward"):
            dtype = str(autocast.fast_dtype).removeprefix("torch.")
            recorder.note(event, device=autocast.device, dtype=dtype, enabled=True)

    def enter(original: Callable[..., Any], autocast: torch.autocast) -> Any:
        result = original(autocast)
        note("autocast_enter", autocast)
        return result

    def leave(original: Callable[..., Any], autocast: torch.autocast, *error: Any) -> Any:
        result = original(autocast, *error)
        note("autocast_exit", autocast)
        return result

    with replaced(torch.autocast, "__enter__", enter), replaced(torch.autocast, "__exit__", leave):
        yield
