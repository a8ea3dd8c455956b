"""skorch 1.4.0: with AccelerateMixin, a schedule by batch advances with each micro-batch."""

import sys

import torch
from accelerate import Accelerator
from skorch import NeuralNet
from skorch.callbacks import LRScheduler
from skorch.hf import AccelerateMixin
from torch.utils.data import TensorDataset

ACCUMULATION = 4

rates = []


class Net(AccelerateMixin, NeuralNet):
    pass


class SGD(torch.optim.SGD):
    """Records the learning rate of each step."""

    def step(self, closure=None):
        rates.append(self.param_groups[0]["lr"])


net = Net(
    torch.nn.Linear(1, 1),
    torch.nn.MSELoss,
    optimizer=SGD,
    lr=1.0,
    accelerator=Accelerator(cpu=True, gradient_accumulation_steps=ACCUMULATION),
    callbacks=[LRScheduler(torch.optim.lr_scheduler.ExponentialLR, gamma=0.5, step_every="batch")],
    batch_size=1,
    max_epochs=1,
    train_split=None,
    callbacks__print_log__sink=lambda line: None,
)
# Two windows of four micro-batches.
net.fit(TensorDataset(torch.ones(2 * ACCUMULATION, 1), torch.ones(2 * ACCUMULATION, 1)))

print(f"observed: the learning rates of the two steps are {rates}")
print("expected: [1.0, 0.5]")
sys.exit(rates != [1.0, 0.5])
