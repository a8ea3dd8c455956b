"""An adapter: shows `conformance` how this project trains.

conformance smoke my_trainer.py    checks in seconds that the adapter works
conformance run my_trainer.py      checks that the trainer averages gradients correctly in everything it supports
"""

from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from conformance import Task, trainer


# List only what your trainer supports: anything else is reported as not supported, and not judged. The documentation of
# `trainer` has all arguments, such as schedules, optimizers, world_sizes and resume.
@trainer(
    backends=["single", "ddp"],
    precisions=["fp32", "bf16", "fp16"],
    losses=["mean", "weighted"],
    clips=["norm", "value"],
)
def train(task: Task) -> None:
    # Replace the body with a call to your own training code. The task provides model, optimizer, schedule, loss scaler,
    # data and loss. Hooks read weights and gradients.
    model = task.model()
    if task.world_size > 1:
        dist.init_process_group(task.collective_backend)
        model = DistributedDataParallel(model)
    optimizer = task.optimizer(model.parameters())
    scheduler = task.scheduler(optimizer)
    scaler = task.grad_scaler()  # enabled only in fp16

    # One optimizer step uses a window: `task.accumulation` micro-batches of this rank, perhaps fewer at the end.
    # A loop that counts micro-batches itself takes them from `task.dataloader()`.
    for window in task.windows():
        # The average is over all samples of the window on all ranks; DDP divides by the number of ranks.
        weight = torch.stack([batch.weights.sum() for batch in window]).sum()
        if task.world_size > 1:
            dist.all_reduce(weight)
        for batch in window:
            waits = task.world_size > 1 and batch is not window[-1]
            with model.no_sync() if waits else nullcontext():
                with task.autocast():
                    loss = task.loss(model(batch.inputs), batch, reduction="sum") / (weight / task.world_size)
                scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        task.clip_(model.parameters())  # does nothing if the case has no clip
        scale = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        if scaler.get_scale() >= scale:  # the step was not skipped for an overflow
            scheduler.step()
        optimizer.zero_grad()

    if task.world_size > 1:
        dist.destroy_process_group()
