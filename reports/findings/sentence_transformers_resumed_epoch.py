"""Sentence Transformers 6.2.0: on resume inside a later epoch, several ranks read the order of epoch 0.

Each batch sampler that shuffles by the epoch is affected, such as the one without duplicates.
"""

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

RANKS, SAMPLES, EPOCHS, SAVED_AFTER = 2, 8, 2, 6


class Module(InputModule):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(1, 1)

    def preprocess(self, inputs, **others):
        return {"input_ids": torch.ones(len(inputs), 1)}

    def forward(self, features):
        return {**features, "sentence_embedding": self.linear(features["input_ids"])}

    def save(self, output_path):
        if os.environ["RANK"] == "0":
            torch.save(self.linear.state_dict(), Path(output_path, "linear.pt"))

    @classmethod
    def load(cls, model_name_or_path, **others):
        module = cls()
        module.linear.load_state_dict(torch.load(Path(model_name_or_path, "linear.pt")))
        return module


class Loss(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model, self.read = model, []

    def forward(self, features, labels):
        self.read += labels.tolist()
        return self.model(features[0])["sentence_embedding"].mean()


def train(rank, port, folder, resume):
    for name, value in {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": RANKS, "MASTER_PORT": port}.items():
        os.environ[name] = str(value)
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    model = SentenceTransformer(modules=[Module()], device="cpu")
    loss = Loss(model)
    arguments = SentenceTransformerTrainingArguments(
        folder,
        use_cpu=True,
        ddp_backend="gloo",
        per_device_train_batch_size=1,
        num_train_epochs=EPOCHS,
        save_strategy="steps",
        save_steps=SAVED_AFTER,
        batch_sampler="no_duplicates",
        report_to="none",
        disable_tqdm=True,
    )
    data = Dataset.from_dict({"text": [str(number) for number in range(SAMPLES)], "label": range(SAMPLES)})
    trainer = SentenceTransformerTrainer(model, arguments, data, loss=loss)
    trainer.train(resume and os.path.join(folder, f"checkpoint-{SAVED_AFTER}"))
    if rank == 0:
        torch.save(loss.read, os.path.join(folder, "read"))


def read_by_rank_0(folder, resume):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    torch.multiprocessing.start_processes(train, (port, folder, resume), RANKS, start_method="fork")
    return torch.load(os.path.join(folder, "read"))


with tempfile.TemporaryDirectory() as folder:
    through = read_by_rank_0(folder, None)[SAVED_AFTER:]
    resumed = read_by_rank_0(folder, True)
print(f"observed: resumed after step {SAVED_AFTER} of 8, in the second epoch, rank 0 reads the samples {resumed}")
print(f"expected: {through}, as without a stop")
sys.exit(resumed != through)
