"""Finds the launch, rank and world size of this process."""

from __future__ import annotations

import os
import sys

import torch


def of_process() -> tuple[str, int, int]:
    """A text that is equal for processes that train together, the rank of this process, and the world size."""
    horovod = sys.modules.get("horovod.torch")
    if horovod is not None and horovod.is_initialized() and horovod.size() > 1:
        return (
            f"horovod {_environment('HOROVOD_RENDEZVOUS_PORT', 'HOROVOD_GLOO_RENDEZVOUS_PORT')}",
            horovod.rank(),
            horovod.size(),
        )
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        world = torch.distributed.get_world_size()
        if world > 1:
            names = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT")
            return f"torch {_environment(*names)}", torch.distributed.get_rank(), world
    return f"alone {os.getpid()}", 0, 1


def started() -> int:
    """The number of ranks that the launcher's variables state, whether or not they joined a group."""
    size = _environment("WORLD_SIZE")
    return int(size) if size.isdecimal() and _environment("RANK").isdecimal() else 1


def world() -> int:
    return of_process()[2]


def _environment(*names: str) -> str:
    return " ".join(os.environ.get(name, "") for name in names)
