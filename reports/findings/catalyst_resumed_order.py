"""Catalyst 22.4: with Accelerate 1.15, resumed training reads the order of epoch 0."""

import sys
import tempfile

import torch
from catalyst import dl
from torch.utils.data import DataLoader, DistributedSampler


class Engine(dl.CPUEngine):
    def mean_reduce_ddp_metrics(self, metrics):
        return metrics  # Catalyst's own asks for a distributed type that Accelerate 1 no longer has.


class Runner(dl.SupervisedRunner):
    """Records the samples that it reads."""

    def __init__(self):
        super().__init__()
        self.noted = []

    def handle_batch(self, batch):
        self.noted += batch["features"].flatten().int().tolist()
        super().handle_batch(batch)


def read(folder, epochs, resume=None):
    model = torch.nn.Linear(1, 1)
    samples = [{"features": torch.full((1,), float(number)), "targets": torch.zeros(1)} for number in range(6)]
    runner = Runner()
    runner.train(
        model=model,
        engine=Engine(),
        criterion=torch.nn.MSELoss(),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.0),
        loaders={"train": DataLoader(samples, 1, sampler=DistributedSampler(samples, num_replicas=1, rank=0))},
        num_epochs=epochs,
        callbacks=[dl.CheckpointCallback(folder, mode="runner", resume_runner=resume)],
    )
    return runner.noted


with tempfile.TemporaryDirectory() as folder:
    expected = read(folder, 2)[6:]
with tempfile.TemporaryDirectory() as folder:
    read(folder, 1)
    observed = read(folder, 2, f"{folder}/runner.last.pth")
print(f"observed: resumed after the first of two epochs, it reads the samples {observed}")
print(f"expected: {expected}, as without a stop")
sys.exit(observed != expected)
