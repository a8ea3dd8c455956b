"""transformers 5.24.0: on resume inside a later epoch, several ranks read the order of epoch 0.

`train_sampling_strategy="batch_rebalance"` and custom samplers are affected; the default sampler is not.
"""

import os
import socket
import sys
import tempfile

import torch
from transformers import Trainer, TrainingArguments

RANKS, SAMPLES, EPOCHS, SAVED_AFTER = 2, 8, 2, 6


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.read = []

    def forward(self, number):
        self.read += number.int().tolist()
        return {"loss": (self.weight * number).mean()}


def train(rank, port, folder, resume):
    for name, value in {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": RANKS, "MASTER_PORT": port}.items():
        os.environ[name] = str(value)
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    model = Model()
    arguments = TrainingArguments(
        folder,
        use_cpu=True,
        ddp_backend="gloo",
        per_device_train_batch_size=1,
        num_train_epochs=EPOCHS,
        save_strategy="steps",
        save_steps=SAVED_AFTER,
        train_sampling_strategy="batch_rebalance",
        remove_unused_columns=False,
        report_to="none",
        disable_tqdm=True,
    )
    # Batches are balanced by the length of `input_ids`.
    data = [{"number": float(number), "input_ids": [0] * (number + 1)} for number in range(SAMPLES)]
    trainer = Trainer(model, arguments, lambda rows: {"number": torch.tensor([row["number"] for row in rows])}, data)
    trainer.train(resume and os.path.join(folder, f"checkpoint-{SAVED_AFTER}"))
    if rank == 0:
        torch.save(model.read, os.path.join(folder, "read"))


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
