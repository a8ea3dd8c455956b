"""MMEngine 0.10.7: with torch 2.6 or later the Runner cannot resume from a checkpoint that it has written."""

import os
import pickle
import sys
import tempfile

import torch
from mmengine.model import BaseModel
from mmengine.optim import OptimWrapper
from mmengine.runner import Runner
from torch.utils.data import DataLoader, TensorDataset


class Regression(BaseModel):
    def __init__(self):
        super().__init__()
        self.model = torch.nn.Linear(1, 1)

    def forward(self, inputs, targets, mode):
        return {"loss": torch.nn.functional.mse_loss(self.model(inputs), targets)}


def train(folder, epochs, resume):
    model = Regression()
    Runner(
        model,
        folder,
        DataLoader(TensorDataset(torch.ones(4, 1), torch.ones(4, 1)), 1),
        train_cfg={"by_epoch": True, "max_epochs": epochs},
        optim_wrapper=OptimWrapper(torch.optim.SGD(model.parameters(), lr=0.1)),
        resume=resume,
        log_level="ERROR",
    ).train()


os.environ.pop("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", None)
with tempfile.TemporaryDirectory() as folder:
    train(folder, epochs=1, resume=False)
    try:
        train(folder, epochs=2, resume=True)
        refused = None
    except pickle.UnpicklingError as error:
        refused = next(line.strip() for line in str(error).splitlines() if "Unsupported" in line)

print(f"observed: {refused or 'training resumes'}")
print("expected: training resumes")
sys.exit(refused is not None)
