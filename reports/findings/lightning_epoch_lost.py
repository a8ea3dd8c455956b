"""Lightning 2.6.6: resumed from the last batch of an epoch, with a loader that keeps its position, an epoch is lost."""

import logging
import sys
import tempfile
import warnings
from pathlib import Path

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import TensorDataset
from torchdata.stateful_dataloader import StatefulDataLoader

BATCHES, EPOCHS = 4, 3


class Regression(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = torch.nn.Linear(1, 1)
        self.read = []

    def training_step(self, batch):
        self.read.append((self.current_epoch, int(batch[0])))
        return self.model(batch[0]).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def read(folder, **settings):
    module = Regression()
    loader = StatefulDataLoader(TensorDataset(torch.arange(float(BATCHES))[:, None]), batch_size=1)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    callback = ModelCheckpoint(folder, every_n_train_steps=BATCHES)
    checkpoint = settings.pop("checkpoint", None)
    trainer = lightning.Trainer(accelerator="cpu", max_epochs=EPOCHS, callbacks=[callback], **quiet, **settings)
    trainer.fit(module, loader, ckpt_path=checkpoint)
    return module.read


logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.simplefilter("ignore")
with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as other:
    through = read(other)
    first = read(folder, max_steps=BATCHES)
    resumed = read(other, checkpoint=next(Path(folder).glob("*.ckpt")))

print(f"observed: stopped after step {len(first)}, resumed training reads (epoch, sample) {resumed}")
print(f"expected: {through[BATCHES:]}, as without a stop")
sys.exit(resumed != through[BATCHES:])
