"""fastai: a Learner with callbacks, and a torch optimizer in its OptimWrapper.

It clips by norm alone, and accumulates samples whatever they weigh. Its mixed precision and the loader that it has for
several ranks need CUDA.
"""

from __future__ import annotations

from typing import Any

import torch
from fastai.callback.core import Callback
from fastai.callback.training import GradientAccumulation, GradientClip
from fastai.data.core import DataLoaders
from fastai.learner import Learner, Recorder
from fastai.optimizer import OptimWrapper
from torch.utils.data import DataLoader

from conformance import Task, trainer


class Schedule(Callback):
    def __init__(self, scheduler: Any, sampler: Any) -> None:
        self.scheduler, self.sampler = scheduler, sampler

    def before_epoch(self) -> None:
        self.sampler.set_epoch(self.epoch)

    def after_step(self) -> None:
        self.scheduler.step()


@trainer(
    precisions=("fp64", "fp32"),
    clips=("norm",),
    own_order=True,
    last_window="carry",
    requires=("fastai",),
)
def train(task: Task) -> None:
    model, sampler = task.model(), task.sampler()
    optimizer = task.optimizer(model.parameters())
    callbacks = [Schedule(task.scheduler(optimizer), sampler)]
    if task.accumulation > 1:
        callbacks.append(GradientAccumulation(task.accumulation * task.micro_batch_size))
    if task.clip:
        callbacks.append(GradientClip(task.clip.threshold))
    order: dict[str, Any] = {"shuffle": True} if task.own_order else {"sampler": sampler}
    data = DataLoaders(DataLoader(task.dataset(format=tuple), task.micro_batch_size, **order), [])
    # By default all groups begin with the Learner's own learning rate.
    rates = [group["lr"] for group in optimizer.param_groups]
    loss = torch.nn.functional.mse_loss
    learner = Learner(data, model, loss, OptimWrapper(opt=optimizer), lr=rates, cbs=callbacks)
    # By default it smooths the loss, too, which ends in an error where that is in double precision.
    learner.remove_cb(Recorder)
    with learner.no_bar(), learner.no_logging():
        learner.fit(len(list(task.epochs())))
