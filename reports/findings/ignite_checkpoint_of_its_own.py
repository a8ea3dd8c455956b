"""PyTorch-Ignite 0.5.5: `Checkpoint.load_objects` does not load a checkpoint that has a deterministic engine."""

import pickle
import sys
import tempfile
from pathlib import Path

from ignite.engine import DeterministicEngine, Events
from ignite.handlers import Checkpoint, DiskSaver

with tempfile.TemporaryDirectory() as folder:
    engine = DeterministicEngine(lambda engine, batch: None)
    saver = Checkpoint({"engine": engine}, DiskSaver(folder))
    engine.add_event_handler(Events.ITERATION_COMPLETED(once=2), saver)
    engine.run(range(4))
    [file] = Path(folder).glob("*.pt")

    fresh = DeterministicEngine(lambda engine, batch: None)
    try:
        Checkpoint.load_objects({"engine": fresh}, file)
        observed = f"the engine is at iteration {fresh.state.iteration}"
    except pickle.UnpicklingError as error:
        observed = f"it is refused: {str(error).split('.')[0]}"

expected = "the engine is at iteration 2"
print(f"observed: {observed}")
print(f"expected: {expected}")
sys.exit(observed != expected)
