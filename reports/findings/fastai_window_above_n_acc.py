"""fastai 2.8.12: GradientAccumulation divides by `n_acc` even if a window has more samples."""

import sys

import torch
from fastai.callback.training import GradientAccumulation
from fastai.data.core import DataLoaders
from fastai.learner import Learner
from fastai.optimizer import OptimWrapper
from torch.utils.data import DataLoader, TensorDataset

gradients = []


class SGD(torch.optim.SGD):
    """Records the gradient of each step."""

    def step(self, closure=None):
        gradients.extend(parameter.grad.item() for group in self.param_groups for parameter in group["params"])


for n_acc in (4, 3):
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    # Two batches of two samples. All samples are equal.
    data = DataLoaders(DataLoader(TensorDataset(torch.ones(4, 1), torch.ones(4, 1)), 2), [])
    optimizer = OptimWrapper(opt=SGD(model.parameters(), lr=0.0))
    learner = Learner(data, model, torch.nn.MSELoss(), optimizer, cbs=[GradientAccumulation(n_acc)])
    with learner.no_bar(), learner.no_logging():
        learner.fit(1)

print(f"observed: the gradient of four samples is {gradients[0]} with n_acc=4, and {gradients[1]} with n_acc=3")
print(f"expected: both are {gradients[0]}, the mean over four samples that are all equal")
sys.exit(abs(gradients[1] - gradients[0]) > 1e-6)
