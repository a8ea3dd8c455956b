"""`zero_grad` of optimizers and modules. Gradients that are set to None by hand show at the next backward."""

from __future__ import annotations

from typing import Any

import torch

from conformance.trace.seams.patching import Seams, replaced
from conformance.watch import records
from conformance.watch.recording.recording import Recording


def observe(recording: Recording) -> Seams:
    """Notes `Cleared`."""

    def by_optimizer(original: Any, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        note([parameter for group in optimizer.param_groups for parameter in group["params"]])
        return original(optimizer, *args, **kwargs)

    def by_module(original: Any, module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        note(module.parameters())
        return original(module, *args, **kwargs)

    def note(parameters: Any) -> None:
        numbers = recording.parameters.numbers(parameters)
        if numbers:
            recording.note(records.Cleared(numbers, recording.parameters.version(), recording.site()))

    yield replaced(torch.optim.Optimizer, "zero_grad", by_optimizer)
    yield replaced(torch.nn.Module, "zero_grad", by_module)
