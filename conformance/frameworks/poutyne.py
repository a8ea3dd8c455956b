"""Poutyne: `Model.fit_generator`, one process, with its callbacks for clipping and schedules, which count epochs.

It sees one micro-batch and counts samples, so a loss that is weighted has no place. Checkpoints are of whole epochs.
"""

from __future__ import annotations

from typing import Any

import torch
from poutyne import Callback, ClipNorm, ClipValue, LambdaLR, Model
from torch.utils.data import DataLoader

from conformance import Task, trainer


class SetEpoch(Callback):
    def __init__(self, sampler: Any) -> None:
        super().__init__()
        self.sampler = sampler

    def on_epoch_begin(self, epoch_number: int, logs: object) -> None:
        self.sampler.set_epoch(epoch_number - 1)


@trainer(
    precisions=("fp64", "fp32"),
    schedules=("epoch",),
    own_order=True,
    unused_parameters=True,
    sparse=True,
    buffers=True,
    requires=("poutyne",),
)
def train(task: Task) -> None:
    network, sampler = task.model(), None if task.own_order else task.sampler()
    optimizer = task.optimizer(network.parameters())
    callbacks = [LambdaLR(task.scheduler(optimizer).lr_lambdas)]
    if sampler is not None:
        callbacks.append(SetEpoch(sampler))
    if task.clip is not None:
        clip = ClipNorm if task.clip.kind == "norm" else ClipValue
        callbacks.append(clip(network.parameters(), task.clip.threshold))
    loader = DataLoader(task.dataset(), task.micro_batch_size, shuffle=task.own_order, sampler=sampler)
    settings = {"epochs": len(list(task.epochs())), "batches_per_step": task.accumulation, "verbose": False}
    model = Model(network, optimizer, torch.nn.MSELoss(), device=task.device)
    model.fit_generator(loader, callbacks=callbacks, **settings)
