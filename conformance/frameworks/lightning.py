"""Lightning's Trainer, automatic optimization: it divides a loss by the accumulation, regardless of weights."""

from typing import Any

from lightning.pytorch import LightningModule, Trainer, callbacks, plugins, strategies
from torch import Tensor
from torchdata.stateful_dataloader import StatefulDataLoader

from conformance import Batch, Task, trainer


@trainer(backends=("single", "ddp"), precisions=("fp64", "fp32", "bf16", "fp16"), schedules=("step", "epoch"),
         own_order=True, resume=True, survives_kill=True, unused_parameters=True, sparse=True, buffers=True,
         last_window="step", requires=("lightning", "torchdata"))  # fmt: skip
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
    # The equivalent of precision="16-mixed", which becomes "bf16-mixed" on a CPU, with a warning.
    amp = plugins.MixedPrecision("16-mixed", task.device.type, task.grad_scaler()) if task.precision == "fp16" else None
    ddp = strategies.DDPStrategy(find_unused_parameters=task.unused_parameters) if task.world_size > 1 else "auto"
    save: Any = [callbacks.ModelCheckpoint(task.checkpoint_dir, every_n_train_steps=1)] if task.checkpoint_dir else None
    # With torch's own loader, training resumed inside an epoch starts with its first batch.
    order: Any = {"shuffle": True} if task.own_order else {"sampler": task.sampler()}
    loader = StatefulDataLoader(task.dataset(), task.micro_batch_size, **order)
    precision: Any = {"fp64": "64-true", "fp32": "32-true", "bf16": "bf16-mixed"}.get(task.precision)
    threshold, kind = (task.clip.threshold, task.clip.kind) if task.clip else (None, None)
    fitter = Trainer(
        accelerator=task.device.type, devices=task.world_size, strategy=ddp, precision=precision,
        plugins=amp, accumulate_grad_batches=task.accumulation, max_epochs=task.epoch_count, enable_model_summary=False,
        max_steps=task.stop_after or -1, callbacks=save, enable_checkpointing=save is not None,
        gradient_clip_val=threshold, gradient_clip_algorithm=kind, logger=False, enable_progress_bar=False)  # fmt: skip
    fitter.fit(module, loader, ckpt_path=task.resume_from and next(task.resume_from.glob("*.ckpt")))
