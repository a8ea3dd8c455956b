"""Hugging Face transformers' Trainer: it gets model, data, loss, optimizer and schedule, and does the rest.

A sample of weight w has w labels: the Trainer counts them on all ranks. On a CPU its fp16 trains in float32.
"""

from typing import Any

from torch import Tensor
from transformers import TrainingArguments

from conformance import Task, trainer
from conformance.frameworks.hugging_face import InOrder, Model, arguments, fit, optimizers


class Regression(Model):
    def forward(self, inputs: Tensor) -> Any:
        return self.model(inputs)


@trainer(backends=("single", "ddp"), precisions=("fp64", "fp32", "bf16"), layouts=("samples", "batched", "accumulated"),
         losses=("mean", "weighted"), clips=("norm",), resume=True, random_state=True, elastic=True, own_order=True,
         unused_parameters=True, buffers=True, last_window="step", requires=("transformers", "accelerate"))  # fmt: skip
def train(task: Task) -> None:
    model = Regression(task)
    loader = task.global_dataloader(lambda batch: {"inputs": batch.inputs, "labels": task.token_labels(batch)})

    def loss(outputs: Tensor, labels: Tensor, num_items_in_batch: Tensor) -> Tensor:
        return ((outputs - labels)[labels != -100] ** 2).sum() / num_items_in_batch

    options: Any = {"compute_loss_func": loss, "optimizers": optimizers(task, model)}
    fit(task, InOrder(model, TrainingArguments(**arguments(task)), loader.collate_fn, task.dataset(), **options))
