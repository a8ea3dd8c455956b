"""Hugging Face Accelerate, as its guides show it. On a CPU "fp16" trains in float32, so it is not declared."""

import os
from contextlib import nullcontext
from itertools import islice
from typing import Any

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader

from conformance import Task, trainer


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
        os.environ.pop("LOCAL_RANK", None)  # As `python script.py` starts it; as torchrun does, it would use DDP.
    mixed, steps = "bf16" if task.precision == "bf16" else "no", task.accumulation
    # By default a schedule goes on by the number of processes.
    settings: Any = {"gradient_accumulation_steps": steps, "step_scheduler_with_optimizer": False}
    accelerator = Accelerator(cpu=task.device.type == "cpu", mixed_precision=mixed, **settings)
    model, data, passes = task.model(), task.global_dataloader(), 1  # A pass over the task's loader is all epochs.
    if task.own_order:
        data, passes = DataLoader(task.dataset(), task.micro_batch_size, shuffle=True), len(list(task.epochs()))
    optimizer = task.optimizer(model.parameters())
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, data, task.scheduler(optimizer))

    def step() -> None:
        if task.clip is not None and accelerator.sync_gradients:
            clip = accelerator.clip_grad_norm_ if task.clip.kind == "norm" else accelerator.clip_grad_value_
            clip(model.parameters(), task.clip.threshold)
        optimizer.step()
        if accelerator.sync_gradients:
            scheduler.step()
        optimizer.zero_grad()

    for _ in range(passes):
        batches = iter(loader)
        while task.loss_name == "mean" and (batch := next(batches, None)):
            with accelerator.accumulate(model):
                accelerator.backward(task.loss(model(batch.inputs), batch))
                step()  # nothing within a window
        while window := list(islice(batches, steps)):  # the guide's loop for samples that count differently
            total = accelerator.gather(torch.stack([batch.weights.sum() for batch in window]).sum()).sum()
            for number, batch in enumerate(window, start=1):
                with nullcontext() if number == len(window) else accelerator.no_sync(model):
                    loss = task.loss(model(batch.inputs), batch, reduction="sum")
                    accelerator.backward(loss * steps * accelerator.num_processes / total)
            step()
    accelerator.end_training()
