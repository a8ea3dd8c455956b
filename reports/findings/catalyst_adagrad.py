"""Catalyst 22.4: an optimizer without momentum, such as Adagrad, ends training with an error."""

import sys

import torch
from catalyst import dl
from torch.utils.data import DataLoader


class Engine(dl.CPUEngine):
    def mean_reduce_ddp_metrics(self, metrics):
        return metrics  # Catalyst's own asks for a distributed type that Accelerate 1 no longer has.


model = torch.nn.Linear(1, 1)
samples = [{"features": torch.ones(1), "targets": torch.ones(1)}]
try:
    dl.SupervisedRunner().train(
        model=model,
        engine=Engine(),
        criterion=torch.nn.MSELoss(),
        optimizer=torch.optim.Adagrad(model.parameters(), lr=0.1),
        loaders={"train": DataLoader(samples, 1)},
    )
    refused = None
except TypeError as error:
    refused = error
print(f"observed: training ends with {refused!r}" if refused else "observed: training ends without an error")
print("expected: training ends without an error")
sys.exit(refused is not None)
