"""The wrappers, such as DDP's, through which a forward reaches the watched model."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.parallel import DistributedDataParallel

from conformance.trace.seams.patching import replaced

if TYPE_CHECKING:
    from conformance.trace.recorder import Recorder


class Wrappers:
    """Knows the wrappers whose forward is running, and the one that the model's last forward came through."""

    def __init__(self) -> None:
        self._running: list[torch.nn.Module] = []
        self._last: weakref.ref[torch.nn.Module] | None = None

    @contextmanager
    def inside(self, wrapper: torch.nn.Module) -> Iterator[None]:
        """The forward of `wrapper` runs."""
        self._running.append(wrapper)
        try:
            yield
        finally:
            self._running.pop()

    def enter_model(self) -> torch.nn.Module | None:
        """A training forward of the model begins; the result is the wrapper that called it, if any."""
        wrapper = self._running[-1] if self._running else None
        self._last = None if wrapper is None else weakref.ref(wrapper)
        return wrapper

    @property
    def last(self) -> torch.nn.Module | None:
        """The wrapper of the last training forward."""
        return None if self._last is None else self._last()

    @property
    def syncs(self) -> bool | None:
        """Whether DDP would average in a backward: the wrapper's flag, as it is now."""
        flag = getattr(self.last, "require_backward_grad_sync", None)
        return flag if isinstance(flag, bool) else None


@contextmanager
def observing_ddp_forwards(recorder: Recorder) -> Iterator[None]:
    """Have it known when a forward comes through DDP."""

    def forward(original: Callable[..., Any], wrapper: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        with recorder.doing("forward"), recorder.wrappers.inside(wrapper):
            return original(wrapper, *args, **kwargs)

    with replaced(DistributedDataParallel, "forward", forward):
        yield
