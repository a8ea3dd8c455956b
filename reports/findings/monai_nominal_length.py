"""MONAI 1.6.1: the step at the end of an epoch is divided by the nominal number of micro-batches."""

import sys

import torch
from monai.engines import SupervisedTrainer
from torch.utils.data import DataLoader

ACCUMULATION = 4

gradients = []


class SGD(torch.optim.SGD):
    """Records the gradient of each step."""

    def step(self, closure=None):
        gradients.extend(parameter.grad.item() for group in self.param_groups for parameter in group["params"])


network = torch.nn.Linear(1, 1, bias=False)
torch.nn.init.zeros_(network.weight)
# Five micro-batches of one sample: a window of four, and one of one.
samples = [{"image": torch.ones(1), "label": torch.ones(1)}] * 5
SupervisedTrainer(
    device="cpu",
    max_epochs=1,
    train_data_loader=DataLoader(samples, 1),
    network=network,
    optimizer=SGD(network.parameters(), lr=0.0),
    loss_function=torch.nn.MSELoss(),
    accumulation_steps=ACCUMULATION,
).run()

# All samples are equal, so the mean over any window has the same gradient.
print(f"observed: the gradient of the full window is {gradients[0]}, of the short one {gradients[1]}")
print(f"expected: both are {gradients[0]}")
sys.exit(gradients[0] != gradients[1])
