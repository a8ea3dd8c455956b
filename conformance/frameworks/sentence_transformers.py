"""Sentence Transformers' trainer: a text is a sample's number. Losses are unweighted: one micro-batch each."""

from typing import Any

import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.base.modules import InputModule
from sentence_transformers.base.sampler import DefaultBatchSampler
from sentence_transformers.sentence_transformer.losses import MSELoss

from conformance import Task, trainer
from conformance.frameworks.hugging_face import arguments, fit, optimizers


class Regression(InputModule):
    def preprocess(self, inputs: list[str], **others: Any) -> dict[str, torch.Tensor]:
        batch = self.samples.batch([int(number) for number in inputs])
        return {"input_ids": batch.inputs, "targets": batch.targets}

    def forward(self, features: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {**features, "sentence_embedding": self.model(features["input_ids"])}

    def save(self, output_path: str) -> None:
        torch.save(self.model, f"{output_path}/model.pt")

    @classmethod
    def load(cls, model_name_or_path: str, **others: Any) -> Any:
        loaded = cls()
        loaded.model = torch.load(f"{model_name_or_path}/model.pt", weights_only=False)
        return loaded


# Takes targets in the precision of the case: those of the data set would become float32.
class Loss(MSELoss):
    def forward(self, features: list[dict[str, torch.Tensor]], labels: None) -> Any:
        found = self.model(features[0])
        return torch.nn.functional.mse_loss(found["sentence_embedding"], found["targets"])


class InOrder(SentenceTransformerTrainer):
    def get_batch_sampler(self, dataset: Dataset, batch_size: int, drop_last: bool, **others: Any) -> Any:
        return DefaultBatchSampler(self.task.global_sampler(), batch_size, drop_last)


@trainer(backends=("single", "ddp"), precisions=("fp64", "fp32", "bf16"), layouts=("samples", "batched", "accumulated"),
         clips=("norm",), resume=True, random_state=True, elastic=True, own_order=True, unused_parameters=True,
         buffers=True, last_window="step", requires=("sentence_transformers", "datasets", "accelerate"))  # fmt: skip
def train(task: Task) -> None:
    regression, kind = Regression(), SentenceTransformerTrainer if task.own_order else InOrder
    regression.model, regression.samples = task.model(), task.dataset()
    model = SentenceTransformer(modules=[regression], device=str(task.device))
    data = Dataset.from_dict({"sample": [str(number) for number in range(len(regression.samples))]})
    options = {"loss": Loss(model), "optimizers": optimizers(task, regression)}
    fit(task, kind(model, SentenceTransformerTrainingArguments(**arguments(task)), data, **options))
