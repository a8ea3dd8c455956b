"""Lightning's Trainer, automatic optimization: a module says what the loss is, and the Trainer does the rest."""

from typing import Any

import lightning as L
from lightning.pytorch.plugins import MixedPrecision
from torch import Tensor
from torch.utils.data import DataLoader

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
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": self.task.scheduler(optimizer), "interval": "step"},
        }


@trainer(
    backends=("single", "ddp"),
    precisions=("fp64", "fp32", "bf16", "fp16"),
    layouts=("batched", "accumulated"),
    # The Trainer divides what `training_step` returns by `accumulate_grad_batches`, whatever its samples weigh.
    losses=("mean",),
    own_order=True,
    requires=("lightning",),
)
def train(task: Task) -> None:
    settings: dict[str, Any] = {
        "accelerator": task.device.type,
        "devices": task.world_size,
        "strategy": "ddp" if task.world_size > 1 else "auto",
        "accumulate_grad_batches": task.accumulation,
        # A pass over the task's own loader is all epochs, of this rank's samples.
        "use_distributed_sampler": task.own_order,
        "max_epochs": len(list(task.epochs())) if task.own_order else 1,
        **dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False),
    }
    if task.clip:
        settings.update(gradient_clip_val=task.clip.threshold, gradient_clip_algorithm=task.clip.kind)
    if task.loss_scale is None:
        settings["precision"] = PRECISION[task.precision]
    else:  # What precision="16-mixed" stands for, which on a CPU turns into "bf16-mixed", with a warning.
        settings["plugins"] = MixedPrecision("16-mixed", task.device.type, task.grad_scaler())
    loader = DataLoader(task.dataset(), task.micro_batch_size, shuffle=True) if task.own_order else task.dataloader()
    L.Trainer(**settings).fit(Regression(task), loader)
