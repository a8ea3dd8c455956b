"""pytorch-accelerated: its Trainer, started as `accelerate launch` does.

It clips by value alone, and divides by the accumulation whatever samples weigh. On a CPU "fp16" trains in float32.
"""

import os
from typing import Any

import torch
from pytorch_accelerated import Trainer
from pytorch_accelerated.callbacks import get_default_callbacks

from conformance import Task, trainer


@trainer(
    backends=("single", "ddp"),
    precisions=("fp64", "fp32", "bf16"),
    clips=("value",),
    own_order=True,
    requires=("pytorch_accelerated",),
)
def train(task: Task) -> None:
    if task.world_size == 1:
        os.environ.pop("LOCAL_RANK", None)  # As `python script.py` starts it; as torchrun does, it would use DDP.
    os.environ["ACCELERATE_USE_CPU"] = str(task.device.type == "cpu")
    os.environ["ACCELERATE_MIXED_PRECISION"] = "bf16" if task.precision == "bf16" else "no"
    model = task.model()
    loader: dict[str, Any] = {"num_workers": 0}
    if not task.own_order:
        loader["sampler"] = task.global_sampler()
    Trainer(
        model,
        torch.nn.functional.mse_loss,
        task.optimizer(model.parameters()),
        callbacks=get_default_callbacks(progress_bar=False),
    ).train(
        task.dataset(),
        num_epochs=len(list(task.epochs())),
        per_device_batch_size=task.micro_batch_size,
        gradient_accumulation_steps=task.accumulation,
        gradient_clip_value=task.clip.threshold if task.clip else None,
        create_scheduler_fn=task.scheduler,
        train_dataloader_kwargs=loader,
    )
