"""`zero_grad` of optimizers and of modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from conformance.trace.emit import Recording
from conformance.trace.seams.patching import Seams
from conformance.trace.seams.probes import clearing
from conformance.trace.state.optimizers import held_by


def observe(recording: Recording) -> Seams:
    """Records `zero_grad`. If a class has its own and does not call torch's, that is recorded as by hand."""

    def by_optimizer(original: Callable[..., Any], optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        return clear("optimizer", original, optimizer, held_by(optimizer), args, kwargs)

    def by_model(original: Callable[..., Any], model: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        return clear("model", original, model, model.parameters(), args, kwargs)

    def clear(by: str, original: Callable[..., Any], owner: Any, held: Any, args: Any, kwargs: Any) -> Any:
        numbers = recording.watched.numbers(held)
        if not numbers:
            return original(owner, *args, **kwargs)
        set_to_none = bool(args[0] if args else kwargs.get("set_to_none", True))
        with recording.accounting(zeroing=not set_to_none):
            recording.note(
                "zero_grad",
                by=by,
                optimizer=recording.optimizer(owner) if by == "optimizer" else None,
                parameters=numbers,
                set_to_none=set_to_none,
            )
            with recording.watched.reading:
                return original(owner, *args, **kwargs)

    yield from clearing(by_optimizer, by_model)
