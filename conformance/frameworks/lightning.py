"""Lightning's Trainer, automatic optimization: a module says what the loss is, and the Trainer does the rest.

`training_step` sees one micro-batch, and the Trainer divides what it returns by `accumulate_grad_batches`. So
a loss that is weighted over the whole window has no place here, and is not declared.
"""

from __future__ import annotations

from typing import Literal

import lightning as L
from lightning.pytorch.plugins import MixedPrecision
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor
from torch.utils.data import DataLoader

from conformance import Batch, Task, trainer

Precision = Literal["64-true", "32-true", "bf16-mixed"]
PRECISION: dict[str, Precision] = {"fp64": "64-true", "fp32": "32-true", "bf16": "bf16-mixed"}


class Regression(L.LightningModule):
    """The task's model, loss, optimizer and schedule, each in the place where Lightning looks for it."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.task = task
        self.model = task.model()

    def training_step(self, batch: Batch) -> Tensor:
        return self.task.loss(self.model(batch.inputs), batch)

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        optimizer = self.task.optimizer(self.parameters())
        schedule = self.task.scheduler(optimizer)
        # By default a schedule counts epochs.
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


@trainer(
    backends=("single", "ddp"),
    precisions=("fp64", "fp32", "bf16", "fp16"),
    layouts=("batched", "accumulated"),
    losses=("mean",),
    own_order=True,
    requires=("lightning",),
)
def train(task: Task) -> None:
    fitter = L.Trainer(
        accelerator=task.device.type,
        devices=task.world_size,
        strategy="ddp" if task.world_size > 1 else "auto",
        precision=PRECISION.get(task.precision),
        plugins=None if task.loss_scale is None else fp16(task),
        accumulate_grad_batches=task.accumulation,
        gradient_clip_val=task.clip.threshold if task.clip else None,
        gradient_clip_algorithm=task.clip.kind if task.clip else None,
        # The sampler that the Trainer puts in shuffles, whatever the loader's own does. The task's loader has
        # this rank's samples alone, in order, and all epochs.
        use_distributed_sampler=task.own_order,
        max_epochs=len(list(task.epochs())) if task.own_order else 1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    loader = DataLoader(task.dataset(), task.micro_batch_size, shuffle=True) if task.own_order else task.dataloader()
    fitter.fit(Regression(task), loader)


def fp16(task: Task) -> MixedPrecision:
    """The plugin that `precision="16-mixed"` stands for.

    On a CPU "16-mixed" itself turns into "bf16-mixed", with a warning; and only the plugin takes a
    GradScaler.
    """
    return MixedPrecision("16-mixed", task.device.type, task.grad_scaler())
