"""pytorch-accelerated 0.1.61: with gradient accumulation, gradients are clipped after each micro-batch."""

import os
import sys

import torch
from pytorch_accelerated import Trainer
from torch.utils.data import TensorDataset

os.environ["ACCELERATE_USE_CPU"] = "true"

model = torch.nn.Linear(1, 1, bias=False)
torch.nn.init.zeros_(model.weight)
# One window of two micro-batches of one sample, with gradients -4 and 4.
Trainer(model, torch.nn.MSELoss(), torch.optim.SGD(model.parameters(), lr=1.0), callbacks=()).train(
    TensorDataset(torch.ones(2, 1), torch.tensor([[2.0], [-2.0]])),
    num_epochs=1,
    per_device_batch_size=1,
    gradient_accumulation_steps=2,
    gradient_clip_value=1.0,
    train_dataloader_kwargs={"shuffle": False, "num_workers": 0},
)

print(f"observed: after one step the weight is {model.weight.item()}")
print("expected: 0.0, as the mean of the gradients -4 and 4 is 0, which no clip changes")
sys.exit(model.weight.item() != 0.0)
