"""PyTorch-Ignite 0.5.5: a schedule at EPOCH_STARTED takes an extra step after a resume inside an epoch."""

import sys
import tempfile
from pathlib import Path

import torch
from ignite.engine import Engine, Events
from ignite.handlers import Checkpoint, DiskSaver, LRScheduler

EPOCHS, BATCHES, SAVED_AFTER = 3, 4, 6


def train(folder, resume_from=None):
    """Train, with the learning rate halved in each epoch, and return the rate of each iteration."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    rates = []
    engine = Engine(lambda engine, batch: rates.append(optimizer.param_groups[0]["lr"]))
    scheduler = LRScheduler(torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.5**epoch))
    engine.add_event_handler(Events.EPOCH_STARTED, scheduler)
    states = {"engine": engine, "optimizer": optimizer, "scheduler": scheduler}
    if resume_from is None:
        saver = Checkpoint(states, DiskSaver(folder))
        engine.add_event_handler(Events.ITERATION_COMPLETED(once=SAVED_AFTER), saver)
    else:
        Checkpoint.load_objects(states, torch.load(resume_from))
    engine.run(range(BATCHES), max_epochs=EPOCHS)
    return rates


with tempfile.TemporaryDirectory() as folder:
    through = train(folder)
    [file] = Path(folder).glob("*.pt")
    resumed = train(folder, resume_from=file)

print(f"observed: resumed after iteration {SAVED_AFTER} of 12, in the second epoch, with the learning rates {resumed}")
print(f"expected: {through[SAVED_AFTER:]}, as without a stop")
sys.exit(resumed != through[SAVED_AFTER:])
