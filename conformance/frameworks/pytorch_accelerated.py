"""pytorch-accelerated: its Trainer, started as `accelerate launch` does."""

import os
from typing import Any

from pytorch_accelerated import Trainer
from pytorch_accelerated.callbacks import SaveTrainingStateCallback, get_default_callbacks
from torch.nn.functional import mse_loss

from conformance import Task, trainer


# It clips only by value, and divides by the accumulation regardless of weights. On a CPU "fp16" trains in float32.
@trainer(backends=("single", "ddp"), precisions=("fp64", "fp32", "bf16"), clips=("value",), own_order=True, resume=True,
         requires=("pytorch_accelerated",))  # fmt: skip
def train(task: Task) -> None:
    task.leave_torchrun()
    os.environ["ACCELERATE_USE_CPU"] = str(task.device.type == "cpu")
    os.environ["ACCELERATE_MIXED_PRECISION"] = "bf16" if task.precision == "bf16" else "no"
    model, callbacks = task.model(), get_default_callbacks(progress_bar=False)
    if task.checkpoint_dir is not None:
        # The checkpoint saved at the end does not record that an epoch is complete.
        callbacks += (SaveTrainingStateCallback(str(task.checkpoint_dir), save_every_n_epochs=1, save_at_end=False),)
    order: dict[str, Any] = {} if task.own_order else {"sampler": task.global_sampler()}
    Trainer(model, mse_loss, task.optimizer(model.parameters()), callbacks).train(
        task.dataset(), num_epochs=task.epochs_until_stop(), per_device_batch_size=task.micro_batch_size,
        gradient_accumulation_steps=task.accumulation, gradient_clip_value=task.clip and task.clip.threshold,
        create_scheduler_fn=task.scheduler, train_dataloader_kwargs={"num_workers": 0, **order},
        resume_from=task.resume_from and max(task.resume_from.glob("epoch_*")))  # fmt: skip
