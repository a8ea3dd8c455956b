"""Sentence Transformers 6.2.0 with transformers 5.24.0: every rank writes the model of a checkpoint."""

import os
import socket
import sys
import tempfile
from pathlib import Path

import torch
from datasets import Dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.base.modules import InputModule

RANKS = 2


class Module(InputModule):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(1, 1)

    def preprocess(self, inputs, **others):
        return {"input_ids": torch.ones(len(inputs), 1)}

    def forward(self, features):
        return {**features, "sentence_embedding": self.linear(features["input_ids"])}

    def save(self, output_path):
        """Leaves a file for each rank that saves."""
        Path(output_path, f"written by rank {os.environ['RANK']}").touch()


class Loss(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, features, labels):
        return self.model(features[0])["sentence_embedding"].mean()


def train(rank, port, folder):
    for name, value in {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": RANKS, "MASTER_PORT": port}.items():
        os.environ[name] = str(value)
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    model = SentenceTransformer(modules=[Module()], device="cpu")
    arguments = SentenceTransformerTrainingArguments(
        folder,
        use_cpu=True,
        ddp_backend="gloo",
        per_device_train_batch_size=1,
        max_steps=1,
        save_strategy="steps",
        report_to="none",
        disable_tqdm=True,
    )
    data = Dataset.from_dict({"text": ["one", "two"]})
    SentenceTransformerTrainer(model, arguments, data, loss=Loss(model)).train()


with tempfile.TemporaryDirectory() as folder:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    torch.multiprocessing.start_processes(train, (port, folder), RANKS, start_method="fork")
    written = sorted(path.name for path in Path(folder, "checkpoint-1").glob("written by*"))
print(f"observed: the model of the checkpoint is {' and '.join(written)}")
print("expected: written by rank 0")
sys.exit(written != ["written by rank 0"])
