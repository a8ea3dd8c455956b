"""TorchTNT 0.2.4: on resume inside an epoch, AutoUnit skips the batch that it had prefetched."""

import logging
import os
import sys
import tempfile
import warnings

import torch
from torch.utils.data import TensorDataset
from torchdata.stateful_dataloader import StatefulDataLoader
from torchtnt import framework
from torchtnt.framework.auto_unit import AutoUnit
from torchtnt.framework.callbacks import DistributedCheckpointSaver

BATCHES, SAVED_AFTER = 8, 3


class Unit(AutoUnit):
    def __init__(self):
        super().__init__(module=torch.nn.Linear(1, 1))
        self.read = []

    def configure_optimizers_and_lr_scheduler(self, module):
        return torch.optim.SGD(module.parameters(), lr=0.1), None

    def compute_loss(self, state, data):
        self.read.append(int(data[0]))
        outputs = self.module(data[0])
        return outputs.sum(), outputs


def read(folder, checkpoint=None):
    unit, loader = Unit(), StatefulDataLoader(TensorDataset(torch.arange(float(BATCHES))[:, None]), 1)
    saver = DistributedCheckpointSaver(folder, save_every_n_train_steps=SAVED_AFTER)
    if checkpoint is not None:
        DistributedCheckpointSaver.restore(checkpoint, unit, train_dataloader=loader)
    framework.train(unit, loader, max_epochs=1, callbacks=[saver])
    return unit.read


logging.disable(logging.WARNING)
warnings.simplefilter("ignore")
with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as other:
    through = read(folder)
    resumed = read(other, os.path.join(folder, f"epoch_0_train_step_{SAVED_AFTER}"))
print(f"observed: resumed from the checkpoint of step {SAVED_AFTER}, it reads the batches {resumed}")
print(f"expected: {through[SAVED_AFTER:]}, as without a stop")
sys.exit(resumed != through[SAVED_AFTER:])
