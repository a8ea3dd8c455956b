"""DistributedDataParallel: its construction, its forward, `no_sync`, and hooks that issue its collectives."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import wraps
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from conformance.trace.emit import Recording
from conformance.trace.seams.guarding import Surrounded
from conformance.trace.seams.patching import Seams, replaced
from conformance.trace.seams.probes import wrapping
from conformance.trace.state.payloads import GRADIENTS


def observe(recording: Recording) -> Seams:
    """Records what happens to wrappers of the watched model, and ignores wrappers of other models."""

    def construct(original: Callable[..., None], wrapper: DistributedDataParallel, *args: Any, **kwargs: Any) -> None:
        original(wrapper, *args, **kwargs)
        model = next((module for module in wrapper.module.modules() if recording.watched.is_model(module)), None)
        if model is not None:
            recording.numbers.of("wrapper", wrapper)
            recording.note(
                "wrap",
                model=recording.numbers.of("model", model),
                wrapper=type(wrapper).__name__,
                find_unused=wrapper.find_unused_parameters,
            )

    def forward(original: Callable[..., Any], wrapper: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        with recording.inside("forward"), recording.wrappers.inside(wrapper):
            return original(wrapper, *args, **kwargs)

    def no_sync(
        original: Callable[..., AbstractContextManager[None]], wrapper: DistributedDataParallel
    ) -> AbstractContextManager[None] | Surrounded:
        if recording.numbers.known("wrapper", wrapper) is None:
            return original(wrapper)
        return Surrounded(lambda: original(wrapper), lambda: recording.region("no_sync"), __name__)

    def register_hook(original: Callable[..., None], reducer: Any, state: object, hook: Callable[..., Any]) -> None:
        # The reducer calls it with buckets of gradients.
        @wraps(hook)
        def carrying(state: object, bucket: Any) -> Any:
            with recording.payloads.carrying(GRADIENTS):
                return hook(state, bucket)

        original(reducer, state, carrying)

    yield from wrapping(construct)
    yield replaced(DistributedDataParallel, "forward", forward)
    yield replaced(DistributedDataParallel, "no_sync", no_sync)
    yield replaced(torch.distributed, "_register_comm_hook", register_hook)
