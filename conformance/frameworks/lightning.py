"""Lightning's Trainer, automatic optimization: a module says what the loss is, and the Trainer does the rest."""

from typing import Any

from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins import MixedPrecision
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor
from torchdata.stateful_dataloader import StatefulDataLoader

from conformance import Batch, Task, trainer

PRECISION: Any = {"fp64": "64-true", "fp32": "32-true", "bf16": "bf16-mixed"}


# The Trainer divides what `training_step` returns by `accumulate_grad_batches`, whatever its samples weigh.
@trainer(
    backends=("single", "ddp"), precisions=("fp64", "fp32", "bf16", "fp16"), schedules=("step", "epoch"),
    own_order=True, resume=True, survives_kill=True, unused_parameters=True, sparse=True, buffers=True,
    last_window="step", requires=("lightning", "torchdata"),
)  # fmt: skip
def train(task: Task) -> None:
    class Regression(LightningModule):
        model: Any

        def training_step(self, batch: Batch) -> Tensor:
            return task.loss(self.model(batch.inputs), batch)

        def configure_optimizers(self) -> Any:
            optimizer = task.optimizer(self.parameters())
            # By default a schedule counts epochs.
            return [optimizer], [{"scheduler": task.scheduler(optimizer), "interval": task.schedule_by}]

    module = Regression()
    module.model = task.model()
    # What precision="16-mixed" stands for, which on a CPU turns into "bf16-mixed", with a warning.
    fp16 = MixedPrecision("16-mixed", task.device.type, task.grad_scaler()) if task.precision == "fp16" else None
    ddp = DDPStrategy(find_unused_parameters=task.unused_parameters) if task.world_size > 1 else "auto"
    saved: Any = [ModelCheckpoint(task.checkpoint_dir, every_n_train_steps=1)] if task.checkpoint_dir else None
    # With torch's own loader, training that is resumed inside an epoch begins with its first batch.
    order: Any = {"shuffle": True} if task.own_order else {"sampler": task.sampler()}
    loader = StatefulDataLoader(task.dataset(), task.micro_batch_size, **order)
    Trainer(
        accelerator=task.device.type, devices=task.world_size, strategy=ddp, precision=PRECISION.get(task.precision),
        plugins=fp16, accumulate_grad_batches=task.accumulation, max_epochs=task.epoch_count,
        max_steps=task.stop_after or -1, callbacks=saved, enable_checkpointing=saved is not None,
        gradient_clip_val=task.clip.threshold if task.clip else None,
        gradient_clip_algorithm=task.clip.kind if task.clip else None,
        logger=False, enable_progress_bar=False, enable_model_summary=False,
    ).fit(module, loader, ckpt_path=task.resume_from and next(task.resume_from.glob("*.ckpt")))  # fmt: skip
