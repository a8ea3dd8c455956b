"""Catalyst 22.4: with accumulation_steps, the gradients of a window are summed, and nothing divides them."""

import sys

import torch
from catalyst import dl
from torch.utils.data import DataLoader


class Engine(dl.CPUEngine):
    def mean_reduce_ddp_metrics(self, metrics):
        return metrics  # Catalyst's own asks for a distributed type that Accelerate 1 no longer has.


def gradient(accumulation):
    """The gradient of a step over 4 equal samples, in this number of micro-batches."""
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    samples = [{"features": torch.ones(1), "targets": torch.ones(1)}] * 4
    dl.SupervisedRunner().train(
        model=model,
        engine=Engine(),
        criterion=torch.nn.MSELoss(),
        optimizer=optimizer,
        loaders={"train": DataLoader(samples, 4 // accumulation)},
        callbacks=[dl.OptimizerCallback("loss", accumulation_steps=accumulation)],
    )
    return 0.0 - model.weight.item()


one, four = gradient(1), gradient(4)
print(f"observed: the gradient of 4 samples is {one} in one batch, {four} in 4 micro-batches")
print(f"expected: both are {one}")
sys.exit(one != four)
