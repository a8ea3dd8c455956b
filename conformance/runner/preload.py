"""What every rank needs sooner or later, imported before it counts as started."""

from __future__ import annotations

from importlib import import_module

# What DDP, autocast and the optimizers import only when first used, and sympy by way of torch._dynamo.
_MODULES = (
    "conformance.trace.recorder",
    "conformance.trainers.task",
    "torch._dynamo",
    "torch.amp",
    "torch.distributed.algorithms.join",
    "torch.nn.parallel.distributed",
    "torch.optim",
    "torch.utils.data",
    "sympy",
)


def preload() -> None:
    """Import it all; a forked child has it for nothing."""
    for module in _MODULES:
        import_module(module)
