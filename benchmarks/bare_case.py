"""One rank of the case under another launcher: only the reference trainer's loop.

torchrun runs it as a script: `bare_case.py JOB STORE`.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from conformance.adapter.task import Task
from conformance.trainers.ddp import fit


class KeepsModel(Task):
    """Keeps the model that it returns."""

    def model(self) -> torch.nn.Module:
        self.handed_out = super().model()
        return self.handed_out


def run(rank: int, job: str, store: str) -> None:
    """Trains as rank ``rank``, with a rendezvous in the file ``store``.

    ``job`` is a JSON file: {"spec": input of the rank, "weights": expected result, bit-identical}. The process ends
    here, without Python's teardown, in which torch 2.13 sometimes aborts.
    """
    told = json.loads(Path(job).read_text())
    torch.set_num_threads(1)
    task = KeepsModel(told["spec"], rank)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=task.world_size)
    fit(task)
    weights = [value for parameter in task.handed_out.parameters() for value in parameter.flatten().tolist()]
    if weights != told["weights"]:
        raise AssertionError(f"rank {rank} reached {weights}, not {told['weights']}")
    dist.destroy_process_group()
    os._exit(0)


if __name__ == "__main__":
    run(int(os.environ["RANK"]), *sys.argv[1:3])
