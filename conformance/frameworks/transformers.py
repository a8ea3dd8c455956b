"""Hugging Face transformers' Trainer: it is given model, data, loss, optimizer and schedule, and does the rest.

A sample has as many labels as it weighs: the Trainer counts those of a window on all ranks, and the loss divides by
that. On a CPU `fp16=True` trains in float32, as Accelerate has it, so fp16 is not declared.
"""

from typing import Any

from torch import Tensor
from transformers import TrainingArguments

from conformance import Task, trainer
from conformance.frameworks.hugging_face import InOrder, Model, arguments, fit


class Regression(Model):
    def forward(self, inputs: Tensor) -> Any:
        return self.model(inputs)


@trainer(
    backends=("single", "ddp"), precisions=("fp64", "fp32", "bf16"), layouts=("samples", "batched", "accumulated"),
    losses=("mean", "weighted"), clips=("norm",), resume=True, random_state=True, elastic=True, own_order=True,
    unused_parameters=True, buffers=True, last_window="step", requires=("transformers", "accelerate"),
)  # fmt: skip
def train(task: Task) -> None:
    model = Regression(task)
    optimizer = task.optimizer(model.parameters())
    loader = task.global_dataloader(lambda batch: {"inputs": batch.inputs, "labels": task.token_labels(batch)})

    def loss(outputs: Tensor, labels: Tensor, num_items_in_batch: Tensor) -> Tensor:
        return ((outputs - labels)[labels != -100] ** 2).sum() / num_items_in_batch

    settings, optimizers = TrainingArguments(**arguments(task)), (optimizer, task.scheduler(optimizer))
    options: Any = {"compute_loss_func": loss, "optimizers": optimizers}
    fit(task, InOrder(model, settings, loader.collate_fn, task.dataset(), **options))
