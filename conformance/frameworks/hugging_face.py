"""Shared by the adapters of Hugging Face's trainers: model, arguments, the order of samples, and resuming."""

import tempfile
from typing import Any

from torch.utils.data import DataLoader
from transformers import PreTrainedConfig, PreTrainedModel, Trainer
from transformers.trainer_utils import get_last_checkpoint

from conformance import Task


class Model(PreTrainedModel):
    _tied_weights_keys = {"model.decoder.weight": "model.encoder.weight"}  # noqa: RUF012

    def __init__(self, task: Task) -> None:
        super().__init__(PreTrainedConfig(vocab_size=1))
        self.model = task.model()


class InOrder(Trainer):
    """Reads samples in the order of the case, with the method that the documentation names for that."""

    task: Task

    def get_train_dataloader(self) -> Any:
        if self.task.own_order:
            return super().get_train_dataloader()
        size, sampler = self.args.train_batch_size, self.task.global_sampler()
        loader = DataLoader(self.train_dataset, size, sampler=sampler, collate_fn=self.data_collator)
        return self.accelerator.prepare(loader)


def fit(task: Task, trainer: Any) -> None:
    trainer.task = task
    trainer.train(resume_from_checkpoint=get_last_checkpoint(task.resume_from) if task.resume_from else None)


def optimizers(task: Task, model: Any) -> tuple[Any, Any]:
    """The `optimizers` argument of their trainers."""
    optimizer = task.optimizer(model.parameters())
    return optimizer, task.scheduler(optimizer)


def arguments(task: Task) -> dict[str, Any]:
    """The arguments of `TrainingArguments`."""
    task.leave_torchrun()
    return {
        "output_dir": str(task.checkpoint_dir or tempfile.gettempdir()),
        "use_cpu": task.device.type == "cpu", "bf16": task.precision == "bf16",
        "ddp_backend": task.collective_backend if task.world_size > 1 else None,
        "per_device_train_batch_size": task.micro_batch_size, "gradient_accumulation_steps": task.accumulation,
        "max_grad_norm": task.clip.threshold if task.clip else 0.0,  # By default, 1.
        # It saves at the last step.
        "num_train_epochs": task.epoch_count, "max_steps": task.stop_after or -1,
        "save_strategy": "steps" if task.checkpoint_dir else "no",
        "logging_strategy": "no", "report_to": "none", "disable_tqdm": True, "remove_unused_columns": False,
    }  # fmt: skip
