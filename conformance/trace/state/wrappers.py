"""The wrappers, such as DDP's, through which a forward reaches the watched model."""

from __future__ import annotations

import weakref

import torch

from conformance.trace.state.nested import Nested


class Wrappers:
    """Knows the wrappers whose forward is running, and the one that the model's last forward came through."""

    def __init__(self) -> None:
        self._running = Nested[torch.nn.Module]()
        self.inside = self._running.inside
        self._last: weakref.ref[torch.nn.Module] | None = None

    def enter_model(self) -> torch.nn.Module | None:
        """A training forward of the model begins; the result is the wrapper that called it, if any."""
        wrapper = next(iter(self._running), None)
        self._last = None if wrapper is None else weakref.ref(wrapper)
        return wrapper

    @property
    def syncs(self) -> bool | None:
        """Whether DDP would average in a backward: the flag of the last forward's wrapper, as it is now."""
        flag = getattr(None if self._last is None else self._last(), "require_backward_grad_sync", None)
        return flag if isinstance(flag, bool) else None
