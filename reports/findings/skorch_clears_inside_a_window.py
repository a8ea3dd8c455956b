"""skorch 1.4.0: with AccelerateMixin, accumulation uses only the last micro-batch of each window."""

import sys

import torch
from accelerate import Accelerator
from skorch import NeuralNet
from skorch.hf import AccelerateMixin
from torch.utils.data import TensorDataset

ACCUMULATION = 4

gradients = []


class Net(AccelerateMixin, NeuralNet):
    pass


class SGD(torch.optim.SGD):
    """Records the gradient of each step."""

    def step(self, closure=None):
        gradients.extend(parameter.grad.item() for group in self.param_groups for parameter in group["params"])


net = Net(
    torch.nn.Linear(1, 1, bias=False),
    torch.nn.MSELoss,
    optimizer=SGD,
    accelerator=Accelerator(cpu=True, gradient_accumulation_steps=ACCUMULATION),
    batch_size=1,
    max_epochs=1,
    train_split=None,
    callbacks__print_log__sink=lambda line: None,
)
net.initialize()
torch.nn.init.zeros_(net.module_.weight)
# One window of four micro-batches of one sample. All samples are equal.
net.partial_fit(TensorDataset(torch.ones(ACCUMULATION, 1), torch.ones(ACCUMULATION, 1)))

print(f"observed: the gradient of the window is {gradients[0]}")
print("expected: -2.0, the gradient of each of its samples")
sys.exit(gradients != [-2.0])
