"""Determined's PyTorchTrial, trained without a cluster by Determined's Trainer, as in the guides for both."""

from typing import Any

from determined import pytorch

from conformance import Batch, Task, Unsupported, trainer
from conformance.frameworks.off_cluster import distributed, folder_for_checkpoint


class Regression(pytorch.PyTorchTrial):
    def __init__(self, context: pytorch.PyTorchTrialContext, task: Task) -> None:
        self.context, self.task = context, task
        self.scaler = context.wrap_scaler(task.grad_scaler())
        self.model = context.wrap_model(task.model())
        optimizer = task.optimizer(self.model.parameters())
        self.optimizer = context.wrap_optimizer(optimizer, fp16_compression=task.compression)
        each_step = pytorch.LRScheduler.StepMode.STEP_EVERY_OPTIMIZER_STEP
        context.wrap_lr_scheduler(task.scheduler(self.optimizer), each_step)  # type: ignore[arg-type]  # torch 1's class

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        batch = Batch(*batch)  # The batch was moved to the device, and came back as a plain tuple.
        with self.task.autocast():
            loss = self.task.loss(self.model(batch.inputs), batch)
        self.context.backward(self.scaler.scale(loss))
        self.context.step_optimizer(self.optimizer, self.clip if self.task.clip else None, scaler=self.scaler)
        # The guide does this in every batch, but GradScaler rejects it if nothing was stepped.
        if (batch_idx + 1) % self.task.accumulation == 0:
            self.scaler.update()
        return {"loss": loss}

    def clip(self, parameters: Any) -> None:
        self.scaler.unscale_(self.optimizer)
        self.task.clip_(parameters)

    def build_training_data_loader(self) -> pytorch.DataLoader:
        loader, own_order = self.task.global_dataloader(), self.task.own_order
        data = self.task.dataset() if own_order else loader.dataset
        return pytorch.DataLoader(data, loader.batch_size, shuffle=own_order, collate_fn=loader.collate_fn)

    build_validation_data_loader = build_training_data_loader

    def evaluate_full_dataset(self, data_loader: Any) -> dict[str, Any]:
        return {}  # A trial needs a validation.


# `train_batch` sees one micro-batch: no loss weighted over a window. Without a cluster, a resume restarts the data.
@trainer(backends=("single", "ddp", "horovod"), precisions=("fp64", "fp32", "bf16", "fp16", "fp16-compression"),
         own_order=True, buffers=True, requires=("determined",))  # fmt: skip
def train(task: Task) -> None:
    settings: Any = {"aggregation_frequency": task.accumulation, "enable_tensorboard_logging": False}
    with folder_for_checkpoint(), pytorch.init(distributed=distributed(task), **settings) as context:
        if context.device.type != task.device.type:
            raise Unsupported(f"Determined trains on {context.device}, and has no option to prevent it")
        # Without its own order, it gets the samples of all epochs in one.
        epochs = pytorch.Epoch(task.epoch_count if task.own_order else 1)
        pytorch.Trainer(Regression(context, task), context).fit(max_length=epochs, checkpoint_policy="none")
