"""Determined 0.38.1: off its cluster, resumed training starts again with the first batch."""

import logging
import os
import sys
import tempfile
import warnings
from pathlib import Path

import torch
from determined import pytorch

# Otherwise torch 2.6 and later refuse the checkpoint.
os.environ["TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"] = "1"
BATCHES, SAVED_AFTER = 8, 4


class Trial(pytorch.PyTorchTrial):
    def __init__(self, context):
        self.context, self.read = context, []
        self.model = context.wrap_model(torch.nn.Linear(1, 1))
        self.optimizer = context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.1))

    def train_batch(self, batch, epoch_idx, batch_idx):
        self.read.append(int(batch))
        loss = self.model(batch).sum()
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}

    def build_training_data_loader(self):
        return pytorch.DataLoader(torch.arange(float(BATCHES))[:, None], batch_size=1)

    build_validation_data_loader = build_training_data_loader

    def evaluate_full_dataset(self, data_loader):
        return {}


def read(batches, checkpoint=None):
    with pytorch.init(enable_tensorboard_logging=False) as context:
        trial = Trial(context)
        pytorch.Trainer(trial, context).fit(
            max_length=pytorch.Batch(batches), checkpoint_policy="none", latest_checkpoint=checkpoint
        )
    return trial.read


logging.disable(logging.WARNING)
warnings.simplefilter("ignore")
with tempfile.TemporaryDirectory() as folder:
    # It saves in the user's data folder, with a copy of the working directory.
    os.environ["XDG_DATA_HOME"] = str(Path(folder, "data"))
    os.mkdir(empty := Path(folder, "empty"))
    os.chdir(empty)
    through = read(SAVED_AFTER)
    [checkpoint] = os.listdir(Path(folder, "data", "determined"))
    resumed = read(BATCHES, checkpoint)
    os.chdir("/")
expected = list(range(SAVED_AFTER, BATCHES))
print(f"observed: stopped after the batches {through}, resumed training reads {resumed}")
print(f"expected: {expected}")
sys.exit(resumed != expected)
