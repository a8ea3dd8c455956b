"""ZeroRedundancyOptimizer with DistributedDataParallel: each rank keeps the optimizer state of some parameters.

All ranks have all weights and all averaged gradients. Each steps only its own parameters, and broadcasts them. A
checkpoint has the states of all ranks, from which each takes its own.
"""

from __future__ import annotations

from contextlib import nullcontext
from inspect import signature
from itertools import islice
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from conformance import Task, trainer


@trainer(
    backends=("zero-redundancy",),
    precisions=("fp64", "fp32", "bf16", "fp16"),
    layouts=("batched", "accumulated"),
    losses=("mean", "weighted"),
    last_window="step",
    last_batch="use",
    schedule_on_skip="wait",
    buffers=True,
    resume=True,
    survives_kill=True,
    random_state=True,
    elastic=True,
)
def train(task: Task) -> None:
    dist.init_process_group(task.collective_backend)
    fit(task)
    # Last, when the model that uses the process group is gone.
    dist.destroy_process_group()


def fit(task: Task) -> None:
    model = DistributedDataParallel(task.model())
    optimizer = sharded(task.optimizer(model.parameters()))
    scheduler = task.scheduler(optimizer)
    scaler = task.grad_scaler()

    trained = 0
    if task.resume_from is not None:
        saved = torch.load(task.resume_from / "checkpoint.pt", weights_only=True)
        trained = saved["trained"]
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        scheduler.load_state_dict(saved["scheduler"])
        scaler.load_state_dict(saved["scaler"])
        # A new rank keeps its own.
        if task.rank < len(saved["random"]):
            torch.set_rng_state(saved["random"][task.rank])

    for window in islice(task.windows(), trained, task.stop_after):
        optimizer.zero_grad()
        samples = sum(len(batch.inputs) for batch in window)
        weight = torch.stack([batch.weights.sum() for batch in window]).sum()
        if task.loss_name == "weighted":
            # Over the whole global batch, on all ranks: a mean of the ranks' weighted means would be wrong.
            dist.all_reduce(weight)

        for number, batch in enumerate(window, start=1):
            # Around the forward too: the forward decides whether the backward all-reduces.
            with nullcontext() if number == len(window) else model.no_sync():
                with task.autocast():
                    outputs = model(batch.inputs)
                    if task.loss_name == "weighted":
                        # DDP divides by the number of ranks, which the total weight already covers.
                        loss = task.loss(outputs, batch, reduction="sum") / (weight / task.world_size)
                    else:
                        # Division by len(window), if all its micro-batches have the same size.
                        loss = task.loss(outputs, batch) / (samples / len(batch.inputs))
                scaler.scale(loss).backward()

        # Every rank has the gradients of all parameters, so all find the same overflows and the same norm.
        scaler.unscale_(optimizer)
        task.clip_(model.parameters())

        scale = scaler.get_scale()
        scaler.step(optimizer)  # skipped, on all ranks, if a gradient overflowed on any
        scaler.update()
        # A skipped step lowers the scale. The schedule counts only the steps that were taken.
        if scaler.get_scale() >= scale:
            scheduler.step()

        trained += 1
        if task.checkpoint_dir is not None and trained in task.save_after:
            # Rank 0 gathers the states of all.
            optimizer.consolidate_state_dict()
            random = [torch.empty_like(torch.get_rng_state()) for _ in range(task.world_size)]
            dist.all_gather(random, torch.get_rng_state())
            if task.rank == 0:
                saved = {
                    "trained": trained,
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "scheduler": scheduler.state_dict(),
                    "scaler": scaler.state_dict(),
                    "random": random,
                }
                replace(task.checkpoint_dir / "checkpoint.pt", saved)


def sharded(asked: torch.optim.Optimizer) -> ZeroRedundancyOptimizer:
    """The same optimizer, sharded over the ranks. Groups keep their own settings."""
    kind = type(asked)
    settings = {name: value for name, value in asked.defaults.items() if name in signature(kind).parameters}
    return ZeroRedundancyOptimizer(asked.param_groups, optimizer_class=kind, **settings)


def replace(path: Path, saved: dict[str, object]) -> None:
    """Writes a checkpoint atomically: the file is complete at any moment."""
    unfinished = path.with_suffix(".unfinished")
    torch.save(saved, unfinished)
    unfinished.replace(path)
