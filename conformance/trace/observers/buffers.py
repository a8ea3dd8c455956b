"""The buffers of the watched model, before and after each of its forwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from conformance.adapter.models import Counting
from conformance.trace.emit import Recording
from conformance.trace.seams.patching import Seams, replaced
from conformance.trace.values import values


def observe(recording: Recording) -> Seams:
    """Shows which forward changed them, and what changed them in between. Copies of the task's model are of its class,
    and functional calls put other tensors into a model for a while: both count alike. Those that an evaluation only
    reads may be others, such as an average's."""
    if recording.watched.kind is Counting:
        yield _forwards(recording)


@contextmanager
def _forwards(recording: Recording) -> Iterator[None]:
    def run(original: Callable[..., Any], module: Counting, *args: Any, **kwargs: Any) -> Any:
        own = module.samples, module.total
        before = values(own, (1, 1))
        try:
            return original(module, *args, **kwargs)
        finally:
            # Checkpointing raises within a forward once it has computed again what it needs.
            after = values(own, (1, 1))
            if recording.is_inside("backward"):
                how = "recomputed"
            else:
                how = "with gradients" if torch.is_grad_enabled() else "without gradients"
            if before != after or how != "without gradients":
                number = recording.numbers.of("counting", module)
                recording.counting = number, own
                recording.note("buffers", how=how, model=number, training=module.training, before=before, after=after)

    with replaced(Counting, "forward", run):
        yield
