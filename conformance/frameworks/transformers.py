"""Hugging Face transformers' Trainer: it is given model, data, loss, optimizer and schedule, and does the rest.

A sample has as many labels as it weighs. The Trainer counts those of a window on all ranks, and the loss divides by
their number. On a CPU `fp16=True` trains in float32, as Accelerate has it, so fp16 is not declared.
"""

from torch import Tensor
from transformers import TrainingArguments

from conformance import Task, trainer
from conformance.frameworks.hugging_face import InOrder, Model, arguments, fit


class Regression(Model):
    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.model(inputs)
        return outputs


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

    fitter = InOrder(
        model, TrainingArguments(**arguments(task)), loader.collate_fn, task.dataset(), compute_loss_func=loss,
        optimizers=(optimizer, task.scheduler(optimizer)),
    )  # fmt: skip
    fit(task, fitter)
