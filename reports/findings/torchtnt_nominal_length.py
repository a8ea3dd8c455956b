"""TorchTNT 0.2.4: a short last accumulation window is divided by the nominal number of micro-batches."""

import sys

import torch
from torch.utils.data import DataLoader, TensorDataset
from torchtnt.framework.auto_unit import AutoUnit
from torchtnt.framework.train import train

ACCUMULATION = 4

gradients = []


class SGD(torch.optim.SGD):
    """Records the gradient of each step."""

    def step(self, closure=None):
        gradients.extend(parameter.grad.item() for group in self.param_groups for parameter in group["params"])


class Unit(AutoUnit):
    def configure_optimizers_and_lr_scheduler(self, module):
        return SGD(module.parameters(), lr=0.0), None

    def compute_loss(self, state, data):
        outputs = self.module(data[0])
        return torch.nn.functional.mse_loss(outputs, data[1]), outputs


module = torch.nn.Linear(1, 1, bias=False)
torch.nn.init.zeros_(module.weight)
unit = Unit(module=module, device=torch.device("cpu"), gradient_accumulation_steps=ACCUMULATION)
# Five micro-batches of one sample: a window of four, and one of one.
train(unit, DataLoader(TensorDataset(torch.ones(5, 1), torch.ones(5, 1)), 1), max_epochs=1)

# All samples are equal, so the mean over any window has the same gradient.
print(f"observed: the gradient of the full window is {gradients[0]}, of the short one {gradients[1]}")
print(f"expected: both are {gradients[0]}")
sys.exit(gradients[0] != gradients[1])
