"""Hugging Face Accelerate: its own sharding, autocast, accumulation and clipping, as its guides show them.

`accumulate()` decides when gradients cross the ranks and when the prepared optimizer really steps;
`backward()` divides each loss by `gradient_accumulation_steps`. For a loss that is weighted over the whole
window Accelerate's guide has a separate loop ("Gradient accumulation on training samples of variable
size"), and so has this file.

Accelerate 1.15 takes `mixed_precision="fp16"` on a CPU and then trains in float32, without autocast and
without a GradScaler. So fp16 is not declared.
"""

from __future__ import annotations

import itertools
import os
from contextlib import nullcontext

import torch
from accelerate import Accelerator
from accelerate.scheduler import AcceleratedScheduler
from torch.utils.data import DataLoader

from conformance import Batch, Task, trainer

MIXED_PRECISION = {"fp64": "no", "fp32": "no", "bf16": "bf16"}


@trainer(
    backends=("single", "ddp"),
    precisions=("fp64", "fp32", "bf16"),
    layouts=("batched", "accumulated"),
    losses=("mean", "weighted"),
    own_order=True,
    requires=("accelerate",),
)
def train(task: Task) -> None:
    if task.world_size == 1:
        # As `python script.py` starts it; with one rank of torchrun's it would wrap the model in DDP.
        os.environ.pop("LOCAL_RANK", None)
    accelerator = Accelerator(
        cpu=task.device.type == "cpu",
        mixed_precision=MIXED_PRECISION[task.precision],
        gradient_accumulation_steps=task.accumulation,
        # Otherwise the schedule goes `num_processes` multipliers ahead with each optimizer step.
        step_scheduler_with_optimizer=False,
    )
    model = task.model()
    optimizer = task.optimizer(model.parameters())
    # Its sampler deals out the batches of a loader that shuffles, in another order each time.
    data = (
        DataLoader(task.dataset(), task.micro_batch_size, shuffle=True) if task.own_order else task.global_dataloader()
    )
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, data, task.scheduler(optimizer))
    # The task's own loader has all epochs in one pass.
    passes = len(list(task.epochs())) if task.own_order else 1
    if task.loss_name == "weighted":
        weighted(task, accelerator, model, optimizer, loader, scheduler)
    else:
        # The loop of the guide's "finished code".
        for _ in range(passes):
            for batch in loader:
                with accelerator.accumulate(model):
                    loss = task.loss(model(batch.inputs), batch)
                    accelerator.backward(loss)
                    if accelerator.sync_gradients:
                        clip(task, accelerator, model)
                    # These two do nothing within a window.
                    optimizer.step()
                    optimizer.zero_grad()
                    if accelerator.sync_gradients:
                        scheduler.step()
    accelerator.end_training()


def weighted(
    task: Task,
    accelerator: Accelerator,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    loader: DataLoader[Batch],
    scheduler: AcceleratedScheduler,
) -> None:
    """The guide's loop for a window whose samples count differently: all of it is read before it is used."""
    batches = iter(loader)
    while window := list(itertools.islice(batches, task.accumulation)):
        local = torch.stack([batch.weights.sum() for batch in window]).sum()
        total = accelerator.gather(local).sum().item()
        for number, batch in enumerate(window, start=1):
            with nullcontext() if number == len(window) else accelerator.no_sync(model):
                loss = task.loss(model(batch.inputs), batch, reduction="sum")
                # DDP divides by the processes and `backward` by the steps; the total covers both already.
                accelerator.backward(loss * task.accumulation * accelerator.num_processes / total)
        clip(task, accelerator, model)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()


def clip(task: Task, accelerator: Accelerator, model: torch.nn.Module) -> None:
    """Clip with Accelerate's own functions, which unscale first where there is a scale."""
    if task.clip is None:
        return
    if task.clip.kind == "norm":
        accelerator.clip_grad_norm_(model.parameters(), task.clip.threshold)
    else:
        accelerator.clip_grad_value_(model.parameters(), task.clip.threshold)
