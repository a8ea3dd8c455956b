"""Determined 0.38.1: with torch 2.6 or later a PyTorchTrial cannot resume from its own checkpoint."""

import logging
import os
import pickle
import sys
import tempfile
import warnings
from pathlib import Path

import torch
from determined import pytorch


class Trial(pytorch.PyTorchTrial):
    def __init__(self, context):
        self.context = context
        self.model = context.wrap_model(torch.nn.Linear(1, 1))
        self.optimizer = context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.1))

    def train_batch(self, batch, epoch_idx, batch_idx):
        loss = self.model(batch).sum()
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}

    def build_training_data_loader(self):
        return pytorch.DataLoader(torch.ones(4, 1), batch_size=1)

    build_validation_data_loader = build_training_data_loader

    def evaluate_full_dataset(self, data_loader):
        return {}


def train(batches, checkpoint=None):
    with pytorch.init(enable_tensorboard_logging=False) as context:
        length = pytorch.Batch(batches)
        pytorch.Trainer(Trial(context), context).fit(
            max_length=length, checkpoint_policy="none", latest_checkpoint=checkpoint
        )


logging.disable(logging.WARNING)
warnings.simplefilter("ignore")
os.environ.pop("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", None)
with tempfile.TemporaryDirectory() as folder:
    # It saves in the user's data folder, with a copy of the working directory.
    os.environ["XDG_DATA_HOME"] = str(Path(folder, "data"))
    os.mkdir(empty := Path(folder, "empty"))
    os.chdir(empty)
    train(2)
    [checkpoint] = os.listdir(Path(folder, "data", "determined"))
    try:
        train(4, checkpoint)
        refused = None
    except pickle.UnpicklingError as error:
        refused = next(line.strip() for line in str(error).splitlines() if "Unsupported" in line).split(" was not")[0]
    os.chdir("/")
print(f"observed: {refused or 'training resumes'}")
print("expected: training resumes")
sys.exit(refused is not None)
