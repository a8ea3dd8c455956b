"""fastai 2.8.12: resume loses the gradients that GradientAccumulation carries over the end of an epoch."""

import sys
import tempfile

import torch
from fastai.callback.core import Callback, CancelFitException
from fastai.callback.training import GradientAccumulation
from fastai.data.core import DataLoaders
from fastai.learner import Learner, Recorder
from fastai.optimizer import OptimWrapper
from torch.utils.data import DataLoader, TensorDataset

# An epoch of three batches is a window and a half.
SAMPLES, EPOCHS, ACCUMULATED = 3, 2, 2


class Stop(Callback):
    """Saves after the first epoch, and ends there."""

    def after_epoch(self):
        self.learn.save("first")
        raise CancelFitException


class Counting(torch.optim.SGD):
    steps = 0

    def step(self, closure=None):
        self.steps += 1
        return super().step(closure)


def train(folder, *, stops=False, resumes=False):
    """How many steps it takes."""
    torch.manual_seed(0)
    model = torch.nn.Linear(1, 1)
    data = TensorDataset(torch.ones(SAMPLES, 1), torch.zeros(SAMPLES, 1))
    optimizer = Counting(model.parameters(), lr=0.1)
    callbacks = [GradientAccumulation(ACCUMULATED), *([Stop()] if stops else [])]
    learner = Learner(
        DataLoaders(DataLoader(data), []),
        model,
        torch.nn.functional.mse_loss,
        OptimWrapper(opt=optimizer),
        lr=0.1,
        cbs=callbacks,
        path=folder,
    )
    learner.remove_cb(Recorder)
    if resumes:
        learner.load("first")
    with learner.no_bar(), learner.no_logging():
        learner.fit(EPOCHS, start_epoch=1 if resumes else 0)
    return optimizer.steps


with tempfile.TemporaryDirectory() as folder:
    through = train(folder)
    stopped = train(folder, stops=True) + train(folder, resumes=True)
print(f"observed: stopped after the first of {EPOCHS} epochs, and resumed, it takes {stopped} steps")
print(f"expected: {through}, as without a stop")
sys.exit(stopped != through)
