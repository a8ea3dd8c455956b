"""TRL's SFTTrainer: a language model that predicts a sample's target once per unit of its weight, not a token."""

from typing import Any

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast
from transformers.modeling_outputs import BaseModelOutput
from trl import SFTConfig, SFTTrainer

from conformance import Task, trainer
from conformance.frameworks.hugging_face import InOrder, Model, arguments, fit, optimizers

HEAD = torch.nn.Linear(1, 1).requires_grad_(False)
TOKENIZER = Tokenizer(models.WordLevel({"<pad>": 0}, "<pad>"))


class Regression(Model):
    # SFTTrainer calls these two, without gradients, for metrics.
    base_model_prefix = "predictions"

    def predictions(self, inputs: torch.Tensor, targets: torch.Tensor, **others: object) -> Any:
        return BaseModelOutput(last_hidden_state=self.model(inputs)[:, None].expand(-1, targets.shape[1], -1))

    def get_output_embeddings(self) -> torch.nn.Module:
        return HEAD

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor, **others: object) -> Any:
        return (self.model(inputs) - targets) ** 2


@trainer(backends=("single", "ddp"), precisions=("fp64", "fp32", "bf16"), layouts=("samples", "batched", "accumulated"),
         losses=("mean", "weighted"), clips=("norm",), resume=True, random_state=True, elastic=True, own_order=True,
         unused_parameters=True, buffers=True, last_window="step", requires=("trl", "datasets"))  # fmt: skip
def train(task: Task) -> None:
    class Fitter(InOrder, SFTTrainer): ...

    def collate(rows: list[dict[str, int]]) -> dict[str, torch.Tensor]:
        batch = task.dataset().batch([row["number"] for row in rows])
        targets = task.token_labels(batch)
        labels = torch.where(targets == -100, -100, 0)
        return {"inputs": batch.inputs, "targets": targets, "labels": labels, "attention_mask": labels == 0}

    def loss(squares: torch.Tensor, labels: torch.Tensor, num_items_in_batch: torch.Tensor) -> Any:
        return squares[labels == 0].sum() / num_items_in_batch

    data = Dataset.from_dict({"number": range(len(task.dataset()))})
    settings = arguments(task) | {"dataset_kwargs": {"skip_prepare_dataset": True}}  # for texts
    settings["gradient_checkpointing"] = False  # By default it computes activations twice.
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=TOKENIZER, pad_token="<pad>", eos_token="<pad>")
    options: Any = {"processing_class": tokenizer, "optimizers": optimizers(task, model := Regression(task))}
    fit(task, Fitter(model, SFTConfig(**settings), collate, data, compute_loss_func=loss, **options))
