"""Lightning 2.6.6: resumed in a later epoch, a loader that reads ahead has the order of epoch 0."""

import logging
import sys
import tempfile
import warnings
from pathlib import Path

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from torchdata.stateful_dataloader import StatefulDataLoader

BATCHES, EPOCHS = 6, 2


class Regression(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = torch.nn.Linear(1, 1)
        self.read = []

    def training_step(self, batch):
        self.read.append(int(batch[0]))
        return self.model(batch[0]).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def read(folder, kind, workers, stop=-1, checkpoint=None):
    module, data = Regression(), TensorDataset(torch.arange(float(BATCHES))[:, None])
    # The Trainer itself inserts this sampler if there are several ranks.
    loader = kind(data, 1, sampler=DistributedSampler(data, 1, 0), num_workers=workers)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    callback = ModelCheckpoint(folder, every_n_train_steps=1)
    trainer = lightning.Trainer(accelerator="cpu", max_epochs=EPOCHS, max_steps=stop, callbacks=[callback], **quiet)
    trainer.fit(module, loader, ckpt_path=checkpoint)
    return module.read


def is_wrong(kind, workers, stop):
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as other:
        expected = read(other, kind, workers)[stop:]
        read(folder, kind, workers, stop)
        resumed = read(other, kind, workers, checkpoint=next(Path(folder).glob("*.ckpt")))
    print(f"observed: {kind.__name__}, {workers} workers, resumed after step {stop} of 12, reads {resumed}")
    print(f"expected: {expected}, as without a stop")
    return resumed != expected


logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.simplefilter("ignore")
inside, between = is_wrong(StatefulDataLoader, 0, 8), is_wrong(DataLoader, 1, 6)
sys.exit(inside or between)
