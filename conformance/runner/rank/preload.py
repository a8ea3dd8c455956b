"""Imports what every rank needs before it counts as started."""

from __future__ import annotations

from importlib import import_module

# What DDP, autocast and the optimizers import only when first used, and sympy by way of torch._dynamo.
_MODULES = (
    "conformance.trace.recorder",
    "conformance.adapter.task",
    "torch._dynamo",
    "torch.amp",
    "torch.distributed.algorithms.join",
    "torch.nn.parallel.distributed",
    "torch.optim",
    "torch.utils.data",
    "torch.utils.file_baton",
    "sympy",
)


def preload() -> None:
    """Import all of it, once for all forked children."""
    for module in _MODULES:
        import_module(module)


def warm_up() -> None:
    """Have torch initialise what it initialises on first use, once for all forked children.

    No backward runs here: autograd refuses to work in a child of a process that has run one. Random numbers stay those
    of a fresh process.
    """
    import torch
    from torch._dynamo.trace_rules import clear_lru_cache
    from torch.nn.functional import mse_loss

    from conformance.trace.recorder import Recorder
    from conformance.trace.seams.patching import leaving_seams, replaced

    # Autocast of torch 2.6 asks for CUDA even on the CPU, and without NVML the answer starts CUDA.
    with (
        replaced(torch.cuda, "is_available", lambda original: False),
        torch.random.fork_rng(devices=()),
        leaving_seams(),
        Recorder(lambda event: None) as recorder,
    ):
        model = torch.nn.Linear(2, 1)
        recorder.watch(model)
        inputs, targets = torch.ones(2, 2), torch.ones(2, 1)
        for dtype in (torch.bfloat16, torch.float16):
            with torch.autocast("cpu", dtype):
                mse_loss(model(inputs), targets)
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer = torch.optim.SGD(model.parameters(), momentum=0.5)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
        scaler = torch.amp.GradScaler("cpu")
        scaler.scale(mse_loss(model(inputs), targets))
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        optimizer.zero_grad()
    # Large, and discarded by each `init_process_group`.
    clear_lru_cache()


def remember() -> None:
    """Have ranks call the functions of torch and Python that there are now, whatever a trainer puts in their place."""
    from conformance.trace.seams.ours import ours

    ours.remember()
