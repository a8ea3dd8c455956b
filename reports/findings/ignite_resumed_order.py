"""PyTorch-Ignite 0.5.5: an epoch resumed in the middle continues in a different order."""

import sys
import tempfile
from pathlib import Path

import torch
from ignite.engine import DeterministicEngine, Events
from ignite.handlers import Checkpoint, DiskSaver
from ignite.utils import manual_seed
from torch.utils.data import DataLoader

SAMPLES, EPOCHS, WORKERS, SAVED_AFTER = 8, 2, 0, 11


def train(folder, resume_from=None):
    """Train with a seed, as the guide does, and return the samples that are read."""
    read = []
    engine = DeterministicEngine(lambda engine, batch: read.extend(batch.tolist()))
    saver = Checkpoint({"engine": engine}, DiskSaver(folder, require_empty=False))
    if resume_from is None:
        engine.add_event_handler(Events.ITERATION_COMPLETED(once=SAVED_AFTER), saver)
    else:
        Checkpoint.load_objects({"engine": engine}, torch.load(resume_from, weights_only=False))
    manual_seed(56)
    engine.run(DataLoader(torch.arange(SAMPLES), shuffle=True, num_workers=WORKERS), max_epochs=EPOCHS)
    return read


with tempfile.TemporaryDirectory() as folder:
    through = train(folder)
    [file] = Path(folder).glob("*.pt")
    resumed = train(folder, resume_from=file)

print(f"observed: resumed after iteration {SAVED_AFTER} of 16, in the second epoch, it reads the samples {resumed}")
print(f"expected: {through[SAVED_AFTER:]}, as without a stop; it has read {through[SAMPLES:SAVED_AFTER]} in this epoch")
sys.exit(resumed != through[SAVED_AFTER:])
