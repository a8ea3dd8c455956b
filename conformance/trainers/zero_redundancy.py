"""ZeroRedundancyOptimizer beside DistributedDataParallel: each rank keeps the optimizer state of some parameters.

All ranks have all weights and all averaged gradients. Each steps its own parameters alone, and broadcasts them.
"""

from __future__ import annotations

from contextlib import nullcontext
from inspect import signature

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

    for window in task.windows():
        optimizer.zero_grad()
        samples = sum(len(batch.inputs) for batch in window)
        weight = torch.stack([batch.weights.sum() for batch in window]).sum()
        if task.loss_name == "weighted":
            # Of the whole global batch, over all ranks: a mean of the ranks' weighted means would be wrong.
            dist.all_reduce(weight)

        for number, batch in enumerate(window, start=1):
            # Around the forward too: it is the forward that decides whether the backward will all-reduce.
            with nullcontext() if number == len(window) else model.no_sync():
                with task.autocast():
                    outputs = model(batch.inputs)
                    if task.loss_name == "weighted":
                        # DDP divides by the number of ranks, which the total weight already covers.
                        loss = task.loss(outputs, batch, reduction="sum") / (weight / task.world_size)
                    else:
                        # By len(window), when its micro-batches are all of one size.
                        loss = task.loss(outputs, batch) / (samples / len(batch.inputs))
                scaler.scale(loss).backward()

        # Of all parameters, on every rank: so all find the same overflows and the same norm.
        scaler.unscale_(optimizer)
        task.clip_(model.parameters())

        scale = scaler.get_scale()
        scaler.step(optimizer)  # skipped, on all ranks, if a gradient overflowed on any
        scaler.update()
        # A skipped step lowers the scale. The schedule counts only the steps that were taken.
        if scaler.get_scale() >= scale:
            scheduler.step()


def sharded(asked: torch.optim.Optimizer) -> ZeroRedundancyOptimizer:
    """The same optimizer, spread over the ranks. Groups keep their own settings."""
    kind = type(asked)
    settings = {name: value for name, value in asked.defaults.items() if name in signature(kind).parameters}
    return ZeroRedundancyOptimizer(asked.param_groups, optimizer_class=kind, **settings)
