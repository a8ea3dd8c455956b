"""pytorch-accelerated 0.1.61: with a schedule, only the first training state of a run can be loaded."""

import os
import sys
import tempfile

import torch
from pytorch_accelerated import Trainer
from pytorch_accelerated.callbacks import SaveTrainingStateCallback
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import TensorDataset

os.environ["ACCELERATE_USE_CPU"] = "true"


def train(callbacks, epochs, resume_from=None):
    model = torch.nn.Linear(1, 1)
    trainer = Trainer(model, torch.nn.MSELoss(), torch.optim.SGD(model.parameters(), lr=0.1), callbacks=callbacks)
    trainer.train(
        TensorDataset(torch.ones(4, 1), torch.ones(4, 1)),
        num_epochs=epochs,
        per_device_batch_size=1,
        create_scheduler_fn=lambda optimizer: StepLR(optimizer, 1),
        train_dataloader_kwargs={"num_workers": 0},
        resume_from=resume_from,
    )


found = {}
with tempfile.TemporaryDirectory() as folder:
    train([SaveTrainingStateCallback(folder, save_every_n_epochs=1, save_at_end=False)], 3)
    for epoch in (1, 2, 3):
        try:
            train([], 4, f"{folder}/epoch_{epoch}")
        except RuntimeError as error:
            found[epoch] = str(error).splitlines()[0]
for epoch, error in found.items():
    print(f"observed: epoch_{epoch} is refused: {error}")
print("expected: each state that the run has saved can be loaded")
sys.exit(bool(found))
