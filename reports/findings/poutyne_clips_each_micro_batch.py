"""Poutyne 1.19: with `batches_per_step`, gradients are clipped after each micro-batch, before they are averaged."""

import sys

import torch
from poutyne import ClipValue, Model
from torch.utils.data import DataLoader, TensorDataset

network = torch.nn.Linear(1, 1, bias=False)
torch.nn.init.zeros_(network.weight)
# One step of two micro-batches of one sample, whose gradients are -4 and 4.
inputs, targets = torch.ones(2, 1), torch.tensor([[2.0], [-2.0]])
model = Model(network, torch.optim.SGD(network.parameters(), lr=1.0), torch.nn.MSELoss())
loader = DataLoader(TensorDataset(inputs, targets), 1)
clip = ClipValue(network.parameters(), 1.0)
model.fit_generator(loader, epochs=1, batches_per_step=2, callbacks=[clip], verbose=False)

# Their mean is 0, so no clip is due, and no weight changes.
print(f"observed: the step uses the gradient {0.0 - network.weight.item()}")
print("expected: 0.0")
sys.exit(network.weight.item() != 0.0)
