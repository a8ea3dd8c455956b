"""pytorch-accelerated 0.1.61: a short last accumulation window is divided by the nominal number of micro-batches."""

import os
import sys

import torch
from pytorch_accelerated import Trainer
from torch.utils.data import TensorDataset

os.environ["ACCELERATE_USE_CPU"] = "true"
ACCUMULATION = 4

gradients = []


class SGD(torch.optim.SGD):
    """Records the gradient of each step."""

    def step(self, closure=None):
        gradients.extend(parameter.grad.item() for group in self.param_groups for parameter in group["params"])


model = torch.nn.Linear(1, 1, bias=False)
torch.nn.init.zeros_(model.weight)
# Five micro-batches of one sample: a window of four, and one of one.
Trainer(model, torch.nn.MSELoss(), SGD(model.parameters(), lr=0.0), callbacks=()).train(
    TensorDataset(torch.ones(5, 1), torch.ones(5, 1)),
    num_epochs=1,
    per_device_batch_size=1,
    gradient_accumulation_steps=ACCUMULATION,
    train_dataloader_kwargs={"num_workers": 0},
)

# All samples are equal, so the mean over any window has the same gradient.
print(f"observed: the gradient of the full window is {gradients[0]}, of the short one {gradients[1]}")
print(f"expected: both are {gradients[0]}")
sys.exit(gradients[0] != gradients[1])
