"""Accelerate 1.15.0: a short last accumulation window is divided by the nominal number of micro-batches."""

import sys

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

ACCUMULATION = 4

inputs, targets = torch.ones(5, 1), torch.ones(5, 1)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=ACCUMULATION)
model = torch.nn.Linear(1, 1, bias=False)
torch.nn.init.zeros_(model.weight)
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
# Five micro-batches of one sample: a window of four, and one of one.
model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(TensorDataset(inputs, targets), 1))
gradients = []
for x, y in loader:
    with accelerator.accumulate(model):
        accelerator.backward(torch.nn.functional.mse_loss(model(x), y))
        if accelerator.sync_gradients:
            gradients.append(model.weight.grad.item())
        optimizer.step()
        optimizer.zero_grad()

# All samples are equal, so the mean over any window has the same gradient.
print(f"observed: the gradient of the full window is {gradients[0]}, of the short one {gradients[1]}")
print(f"expected: both are {gradients[0]}")
sys.exit(gradients[0] != gradients[1])
