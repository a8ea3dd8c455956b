"""Lightning's Trainer, automatic optimization: a module says what the loss is, and the Trainer does the rest."""

from typing import Any

import lightning as L
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins import MixedPrecision
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor
from torchdata.stateful_dataloader import StatefulDataLoader

from conformance import Batch, Task, trainer

PRECISION = {"fp64": "64-true", "fp32": "32-true", "bf16": "bf16-mixed"}


class Regression(L.LightningModule):
    def __init__(self, task: Task) -> None:
        super().__init__()
        self.task, self.model = task, task.model()

    def training_step(self, batch: Batch) -> Tensor:
        return self.task.loss(self.model(batch.inputs), batch)

    def configure_optimizers(self) -> Any:
        optimizer = self.task.optimizer(self.parameters())
        # By default a schedule counts epochs.
        schedule = {"scheduler": self.task.scheduler(optimizer), "interval": self.task.schedule_by}
        return {"optimizer": optimizer, "lr_scheduler": schedule}


# The Trainer divides what `training_step` returns by `accumulate_grad_batches`, whatever its samples weigh.
@trainer(
    backends=("single", "ddp"), precisions=("fp64", "fp32", "bf16", "fp16"), schedules=("step", "epoch"),
    own_order=True, resume=True, survives_kill=True, unused_parameters=True, sparse=True, buffers=True,
    last_window="step", requires=("lightning", "torchdata"),
)  # fmt: skip
def train(task: Task) -> None:
    settings: dict[str, Any] = {
        "accelerator": task.device.type,
        "devices": task.world_size,
        "strategy": DDPStrategy(find_unused_parameters=task.unused_parameters) if task.world_size > 1 else "auto",
        "accumulate_grad_batches": task.accumulation,
        "max_epochs": len(list(task.epochs())),
        "max_steps": task.stop_after or -1,
        "callbacks": [ModelCheckpoint(task.checkpoint_dir, every_n_train_steps=1)] if task.checkpoint_dir else [],
        "enable_checkpointing": task.checkpoint_dir is not None,
        **dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary"), False),
    }
    if task.clip:
        settings.update(gradient_clip_val=task.clip.threshold, gradient_clip_algorithm=task.clip.kind)
    if task.loss_scale is None:
        settings["precision"] = PRECISION[task.precision]
    else:  # What precision="16-mixed" stands for, which on a CPU turns into "bf16-mixed", with a warning.
        settings["plugins"] = MixedPrecision("16-mixed", task.device.type, task.grad_scaler())
    # With torch's own loader, training that is resumed inside an epoch begins with its first batch.
    order = {"shuffle": True} if task.own_order else {"sampler": task.sampler()}
    loader = StatefulDataLoader(task.dataset(), task.micro_batch_size, **order)
    checkpoint = next(task.resume_from.glob("*.ckpt")) if task.resume_from else None
    L.Trainer(**settings).fit(Regression(task), loader, ckpt_path=checkpoint)
