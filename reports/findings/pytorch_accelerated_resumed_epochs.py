"""pytorch-accelerated 0.1.61: resumed training repeats the finished epoch and ends too late."""

import os
import sys
import tempfile

import torch
from pytorch_accelerated import Trainer
from pytorch_accelerated.callbacks import SaveTrainingStateCallback
from torch.utils.data import TensorDataset

os.environ["ACCELERATE_USE_CPU"] = "true"
SAMPLES, EPOCHS, SAVED_AFTER = 4, 3, 2


class SGD(torch.optim.SGD):
    """Counts its steps."""

    count = 0

    def step(self, closure=None):
        SGD.count += 1
        return super().step(closure)


def steps_of(folder, resume_from=None):
    """How many steps a training of three epochs takes; it saves each epoch."""
    model = torch.nn.Linear(1, 1)
    save = SaveTrainingStateCallback(folder, save_every_n_epochs=1, save_at_end=False)
    SGD.count = 0
    Trainer(model, torch.nn.MSELoss(), SGD(model.parameters(), lr=0.1), callbacks=[save]).train(
        TensorDataset(torch.ones(SAMPLES, 1), torch.ones(SAMPLES, 1)),
        num_epochs=EPOCHS,
        per_device_batch_size=1,
        train_dataloader_kwargs={"num_workers": 0},
        resume_from=resume_from,
    )
    return SGD.count


with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
    through = steps_of(first)
    resumed = steps_of(second, f"{first}/epoch_{SAVED_AFTER}")
expected = through - SAVED_AFTER * SAMPLES
print(f"observed: resumed after epoch {SAVED_AFTER} of {EPOCHS}, it takes {resumed} steps")
print(f"expected: {expected}, as all epochs together have {through}")
sys.exit(resumed != expected)
