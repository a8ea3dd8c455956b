"""skorch: a `NeuralNet`, with `AccelerateMixin` (experimental) where there are ranks, accumulation or bf16.

It has no place for a weighted loss, nor for a clip by value. On a CPU Accelerate's "fp16" trains in float32.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from accelerate import Accelerator
from skorch import NeuralNet
from skorch.callbacks import Callback, GradientNormClipping, LRScheduler
from skorch.hf import AccelerateMixin

from conformance import Task, trainer


class Accelerated(AccelerateMixin, NeuralNet): ...


class SetEpoch(Callback):
    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler

    def on_epoch_begin(self, net: NeuralNet, **_: object) -> None:
        self.sampler.set_epoch(len(net.history) - 1)


@trainer(
    backends=("single", "ddp"),
    precisions=("fp64", "fp32", "bf16"),
    clips=("norm",),
    schedules=("step", "epoch"),
    own_order=True,
    requires=("skorch", "accelerate"),
)
def train(task: Task) -> None:
    kind, sampler, by = NeuralNet, task.global_sampler(), "batch" if task.schedule_by == "step" else "epoch"
    settings: dict[str, Any] = (
        {"iterator_train__shuffle": True} if task.own_order else {"iterator_train__sampler": sampler}
    )
    if task.world_size > 1 or task.accumulation > 1 or task.precision == "bf16":
        if task.world_size == 1:
            os.environ.pop("LOCAL_RANK", None)  # As `python script.py` starts it; as torchrun does, it would use DDP.
        # By default a schedule goes on by the number of processes.
        steps: Any = {"gradient_accumulation_steps": task.accumulation, "step_scheduler_with_optimizer": False}
        mixed = "bf16" if task.precision == "bf16" else "no"
        accelerator = Accelerator(cpu=task.device.type == "cpu", mixed_precision=mixed, **steps)
        kind, settings["accelerator"] = Accelerated, accelerator
    schedule = LRScheduler(lambda optimizer, last_epoch: task.scheduler(optimizer), step_every=by)
    callbacks = [SetEpoch(sampler), schedule, *([GradientNormClipping(task.clip.threshold)] if task.clip else [])]
    epochs, make = len(list(task.epochs())), lambda parameters, lr: task.optimizer(parameters)
    settings |= {"max_epochs": epochs, "batch_size": task.micro_batch_size, "train_split": None, "verbose": 0}
    # Not a module, as on a CPU Accelerate would put it into DDP, which refuses one without parameters.
    net = kind(task.model(), lambda: torch.nn.functional.mse_loss, optimizer=make, callbacks=callbacks, **settings)
    net.fit(task.dataset())
