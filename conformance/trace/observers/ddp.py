"""DistributedDataParallel: what it is put around, `no_sync`, and hooks that issue its collectives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import torch
from torch.nn.parallel import DistributedDataParallel

from conformance.trace.observers.collectives import GRADIENTS
from conformance.trace.seams.patching import replaced

if TYPE_CHECKING:
    from conformance.trace.recorder import Recorder


class DDPCalls:
    """Notes what becomes of wrappers of the watched model; other models may have wrappers too."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._wrappers: WeakSet[DistributedDataParallel] = WeakSet()

    def construct(
        self, original: Callable[..., None], wrapper: DistributedDataParallel, *args: Any, **kwargs: Any
    ) -> None:
        """Around `DistributedDataParallel.__init__`."""
        original(wrapper, *args, **kwargs)
        recorder = self._recorder
        model = next((module for module in wrapper.module.modules() if recorder.watched.is_model(module)), None)
        if model is not None:
            self._wrappers.add(wrapper)
            recorder.note(
                "wrap",
                model=recorder.number("model", model),
                wrapper=type(wrapper).__name__,
                find_unused=wrapper.find_unused_parameters,
            )

    @contextmanager
    def no_sync(
        self, original: Callable[..., AbstractContextManager[None]], wrapper: DistributedDataParallel
    ) -> Iterator[None]:
        """Around `DistributedDataParallel.no_sync`."""
        if wrapper not in self._wrappers:
            with original(wrapper):
                yield
            return
        with original(wrapper):
            self._recorder.note("no_sync_enter")
            try:
                yield
            finally:
                self._recorder.note("no_sync_exit")

    def register_hook(
        self, original: Callable[..., None], reducer: Any, state: object, hook: Callable[..., Any]
    ) -> None:
        """Around what hands a communication hook to DDP's reducer, which calls it with buckets of gradients."""

        @wraps(hook)
        def carrying(state: object, bucket: Any) -> Any:
            with self._recorder.collectives.carrying(GRADIENTS):
                return hook(state, bucket)

        original(reducer, state, carrying)


@contextmanager
def observing_ddp(recorder: Recorder) -> Iterator[None]:
    """Have DDP's wrappers of the watched model noted, and their `no_sync`."""
    calls = DDPCalls(recorder)
    with ExitStack() as stack:
        stack.enter_context(replaced(DistributedDataParallel, "__init__", calls.construct))
        stack.enter_context(replaced(DistributedDataParallel, "no_sync", calls.no_sync))
        stack.enter_context(replaced(torch.distributed, "_register_comm_hook", calls.register_hook))
        yield
