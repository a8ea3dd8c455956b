"""An adapter: shows `conformance` how this project trains.

conformance smoke my_trainer.py    whether the adapter works at all, in seconds
conformance run my_trainer.py      whether the trainer averages gradients correctly, in all that it declares
"""

from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from conformance import Task, trainer


# Declare what your trainer can do, and nothing else: what is not declared is not judged, and is reported so. The
# documentation of `trainer` has all arguments, such as schedules, optimizers, world_sizes and resume.
@trainer(
    backends=["single", "ddp"],
    precisions=["fp32", "bf16", "fp16"],
    losses=["mean", "weighted"],
    clips=["norm", "value"],
)
def train(task: Task) -> None:
    # Replace the body by a call of your own trainer. What it would make by itself comes from the task: the model, the
    # optimizer, the schedule, the loss scaler, the data and the loss. Weights and gradients are read by hooks.
    model = task.model()
    if task.world_size > 1:
        dist.init_process_group(task.collective_backend)
        model = DistributedDataParallel(model)
    optimizer = task.optimizer(model.parameters())
    scheduler = task.scheduler(optimizer)
    scaler = task.grad_scaler()  # enabled in fp16 alone

    # One optimizer step uses a window: `task.accumulation` micro-batches of this rank, perhaps fewer at the end.
    # A loop that counts micro-batches by itself takes them from `task.dataloader()`.
    for window in task.windows():
        # The average is over all samples of the window and of all ranks, and DDP divides by the number of ranks.
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
        task.clip_(model.parameters())  # does nothing where the case has no clip
        scale = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        if scaler.get_scale() >= scale:  # the step was not skipped for an overflow
            scheduler.step()
        optimizer.zero_grad()

    if task.world_size > 1:
        dist.destroy_process_group()
