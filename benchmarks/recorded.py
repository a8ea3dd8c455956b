"""One rank that trains with the recorder on and off, in turns, in the same process."""

from __future__ import annotations

import json
import os
from multiprocessing.queues import SimpleQueue
from typing import Any

import torch
import torch.distributed as dist
from measuring import in_turns

from conformance.adapter.task import Task
from conformance.runner.system.protocol import encode
from conformance.trace.recorder import Recorder
from conformance.trainers.ddp import fit

ON, OFF = "recorder on", "recorder off"


def compare(rank: int, spec: str, store: str, rounds: int, answer: SimpleQueue[dict[str, list[float]]]) -> None:
    """Rank 0 answers with the seconds of each `fit`. Events are written, line by line, to the null device.

    The process ends here, without Python's teardown, in which torch 2.13 sometimes aborts.
    """
    told: dict[str, Any] = json.loads(spec)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=told["world_size"])
    nowhere = os.open(os.devnull, os.O_WRONLY)

    def write(event: dict[str, Any]) -> None:
        os.write(nowhere, encode(event))

    def on() -> None:
        with Recorder(write, told, rank) as recorder:
            task = Task(told, rank, recorder)
            fit(task)
            recorder.finished()

    contenders = {OFF: lambda: fit(Task(told, rank)), ON: on}
    # The first run includes torch's initialisation.
    in_turns(contenders, 1)
    times = in_turns(contenders, rounds)
    if rank == 0:
        # A SimpleQueue writes at once: no thread has to be waited for.
        answer.put(times)
    # If a rank exits early, its closed connections fail its peers.
    dist.barrier()
    os._exit(0)
