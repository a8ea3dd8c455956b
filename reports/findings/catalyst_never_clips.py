"""Catalyst 22.4: OptimizerCallback never calls its grad_clip_fn, and BackwardCallback's ends training with an error."""

import sys

import torch
from catalyst import dl
from torch.nn.utils import clip_grad_norm_
from torch.utils.data import DataLoader


class Engine(dl.CPUEngine):
    def mean_reduce_ddp_metrics(self, metrics):
        return metrics  # Catalyst's own asks for a distributed type that Accelerate 1 no longer has.


def gradient(*callbacks):
    """The gradient that a step uses."""
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    samples = [{"features": torch.ones(1), "targets": torch.full((1,), 8.0)}]
    dl.SupervisedRunner().train(
        model=model,
        engine=Engine(),
        criterion=torch.nn.MSELoss(),
        optimizer=torch.optim.SGD(model.parameters(), lr=1.0),
        loaders={"train": DataLoader(samples, 1)},
        callbacks=list(callbacks),
    )
    return abs(model.weight.item())


clip = {"grad_clip_fn": clip_grad_norm_, "grad_clip_params": {"max_norm": 1.0}}
stepped = gradient(dl.OptimizerCallback("loss", **clip))
print(f"observed: with max_norm=1.0 in OptimizerCallback, a step uses a gradient of {stepped}")
try:
    stepped = max(stepped, gradient(dl.BackwardCallback("loss", **clip)))
except AttributeError as error:
    print(f"observed: in BackwardCallback, training ends with {error!r}")
print("expected: 1.0 in both")
sys.exit(stepped > 1.001)
