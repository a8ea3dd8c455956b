"""The callback for transformers' Trainer."""

from __future__ import annotations

import pytest
import torch
from transformers import Trainer, TrainingArguments

from conformance.callbacks import TransformersCallback


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 2)

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": (self.layer(inputs) - labels).square().mean()}


class Doubling(Trainer):
    """Steps with gradients of two windows."""

    def create_optimizer(self, *args, **options):
        optimizer = super().create_optimizer(*args, **options)
        optimizer.zero_grad = lambda set_to_none=True: None
        self.model.zero_grad = lambda set_to_none=True: None
        return optimizer


def trained(trainer: type[Trainer], folder: object, callback: TransformersCallback) -> None:
    torch.manual_seed(0)
    rows = [{"inputs": torch.randn(3), "labels": torch.randn(2)} for _ in range(16)]
    arguments = TrainingArguments(
        str(folder), per_device_train_batch_size=2, gradient_accumulation_steps=2, num_train_epochs=2,
        use_cpu=True, report_to=[], save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    trainer(Model(), arguments, train_dataset=rows, callbacks=[callback]).train()


def test_a_right_training_conforms(tmp_path):
    callback = TransformersCallback()
    trained(Trainer, tmp_path, callback)
    assert (callback.watch.verdict, callback.watch.findings.steps) == ("CONFORMS", 8)


def test_a_wrong_training_raises_at_its_end(tmp_path):
    callback = TransformersCallback()
    with pytest.raises(AssertionError, match="watch/cleared"):
        trained(Doubling, tmp_path, callback)
    assert callback.watch.verdict == "DOES NOT CONFORM"
