"""fastai 2.8.12: a float64 loss ends training with an error."""

import sys

import torch
from fastai.data.core import DataLoaders
from fastai.learner import Learner
from fastai.optimizer import OptimWrapper
from torch.utils.data import DataLoader, TensorDataset

model = torch.nn.Linear(1, 1).double()
samples = TensorDataset(torch.ones(1, 1, dtype=torch.double), torch.ones(1, 1, dtype=torch.double))
optimizer = OptimWrapper(opt=torch.optim.SGD(model.parameters(), lr=1.0))
learner = Learner(DataLoaders(DataLoader(samples), []), model, torch.nn.MSELoss(), optimizer)
outcome = "no error"
try:
    with learner.no_logging():
        learner.fit(1)
except RuntimeError as error:
    outcome = " ".join(str(error).split())

print(f"observed: {outcome}")
print("expected: no error")
sys.exit(outcome != "no error")
