"""Prepares a process for ranks: imports and warm-up once, and each rank's changes of torch."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias

# Modules that DDP, autocast and the optimizers import only on first use; torch._dynamo imports sympy.
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
    """Import these modules, once for all forked children."""
    for module in _MODULES:
        import_module(module)


def warm_up() -> None:
    """Have torch do its initialisation of first use, once for all forked children.

    No backward runs here: autograd refuses to work in a child of a process that has run one. The random state stays
    that of a fresh process.
    """
    import torch
    from torch._dynamo.trace_rules import clear_lru_cache
    from torch.nn.functional import mse_loss

    from conformance.trace.recorder import Recorder
    from conformance.trace.seams.patching import leaving_seams, replaced

    # Autocast of torch 2.6 asks for CUDA even on the CPU, which starts CUDA without NVML.
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
    # A large cache, which each `init_process_group` would discard.
    clear_lru_cache()


def remember() -> None:
    """Have the recorder of ranks use the current functions of torch and Python, even if a trainer replaces them."""
    from conformance.trace.seams.ours import ours

    ours.remember()


Notify: TypeAlias = Callable[[Mapping[str, Any]], None]


def report_locks(notify: Notify) -> None:
    """Report to the server the build locks of torch extensions that this process holds or waits for.

    A lock outlives a killed rank, and every later build would wait forever.
    """
    baton: Any = import_module("torch.utils.file_baton").FileBaton
    acquire, release, wait = baton.try_acquire, baton.release, baton.wait

    def path(self: Any) -> str:
        return str(Path(self.lock_file_path).absolute())

    def try_acquire(self: Any) -> Any:
        acquired = acquire(self)
        if acquired:
            notify({"event": "locked", "path": path(self)})
        return acquired

    def release_and_report(self: Any) -> None:
        release(self)
        notify({"event": "unlocked", "path": path(self)})

    def wait_and_report(self: Any) -> None:
        notify({"event": "waits", "path": path(self)})
        wait(self)
        notify({"event": "waits", "path": None})

    baton.try_acquire, baton.release, baton.wait = try_acquire, release_and_report, wait_and_report


def separate_groups() -> None:
    """Give each `init_process_group` of this process its own prefix in the store.

    With torchrun's defaults, rank 0 hosts a new store each time. The harness's store outlives a destroyed group, so the
    next group would find old addresses and hang (as with `torchrun --standalone`).
    """
    # The attribute `torch.distributed.rendezvous` is a function of the same name.
    module: Any = import_module("torch.distributed.rendezvous")
    store: Any = import_module("torch.distributed").PrefixStore
    create = module._create_c10d_store
    numbers = itertools.count()

    def create_with_prefix(*arguments: Any, **options: Any) -> Any:
        return store(f"group-{next(numbers)}", create(*arguments, **options))

    module._create_c10d_store = create_with_prefix
