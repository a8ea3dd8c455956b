"""PyTorch-Ignite 0.5.5: after a resume inside an epoch, all ranks draw the random numbers of rank 0."""

import os
import socket
import sys
import tempfile

import ignite.distributed as idist
import torch
from ignite.engine import Events
from ignite.engine.deterministic import DeterministicEngine
from ignite.handlers import Checkpoint, DiskSaver
from ignite.utils import manual_seed

RANKS, ITERATIONS, SAVED_AFTER = 2, 6, 4


def draw(rank, port, folder, resume):
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(RANKS)}
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    idist.initialize("gloo")
    manual_seed(rank)  # as in Ignite's examples, so each rank has a different dropout
    drawn = []
    engine = DeterministicEngine(lambda engine, batch: drawn.append(round(torch.rand(()).item(), 3)))
    states = {"engine": engine, "model": torch.nn.Linear(1, 1)}
    saving = Checkpoint(states, DiskSaver(folder, create_dir=True, require_empty=False))
    if resume:
        [file] = (name for name in os.listdir(folder) if name.startswith("checkpoint"))
        # load_objects refuses a path to an Ignite checkpoint with torch 2.6 and later.
        Checkpoint.load_objects(states, torch.load(os.path.join(folder, file), weights_only=False))
    else:
        engine.add_event_handler(Events.ITERATION_COMPLETED(once=SAVED_AFTER), saving)
    engine.run(range(ITERATIONS), max_epochs=1)
    torch.save(drawn, os.path.join(folder, f"drawn-{rank}"))
    idist.finalize()


def drawn_by_rank(folder, resume):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    torch.multiprocessing.start_processes(draw, (port, folder, resume), RANKS, start_method="fork")
    return [torch.load(os.path.join(folder, f"drawn-{rank}")) for rank in range(RANKS)]


with tempfile.TemporaryDirectory() as folder:
    expected = [drawn[SAVED_AFTER:] for drawn in drawn_by_rank(folder, resume=False)]
    observed = drawn_by_rank(folder, resume=True)
for rank in range(RANKS):
    print(f"observed: resumed after iteration {SAVED_AFTER} of {ITERATIONS}, rank {rank} draws {observed[rank]}")
    print(f"expected: {expected[rank]}, as without a stop")
sys.exit(observed != expected)
