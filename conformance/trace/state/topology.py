"""Reads the state of torch.distributed and Horovod."""

from __future__ import annotations

import inspect
import sys
from typing import Any

import torch

MODULE = "horovod.torch.mpi_ops"
OPTIMIZER_MODULE = "horovod.torch.optimizer"


def is_averaging() -> bool:
    """Whether a Horovod collective is in progress, which Horovod runs in another thread."""
    horovod = sys.modules.get(MODULE)
    return horovod is not None and bool(horovod._handle_map)


def settings_of_horovod(optimizer: torch.optim.Optimizer) -> tuple[bool, int | None]:
    """Whether an optimizer is Horovod's, and its `backward_passes_per_step`."""
    synchronize = inspect.getattr_static(optimizer, "synchronize", None)
    is_horovods = getattr(synchronize, "__module__", None) == OPTIMIZER_MODULE
    return is_horovods, getattr(optimizer, "backward_passes_per_step", None) if is_horovods else None


def synchronizes(optimizer: torch.optim.Optimizer) -> bool | None:
    """Whether a step of Horovod's optimizer waits for averages, as it does outside `skip_synchronize`; None for other
    optimizers."""
    should_synchronize: bool | None = getattr(optimizer, "_should_synchronize", None)
    return should_synchronize


def reached() -> dict[str, Any]:
    """{world_size, rank_reached, via} of torch.distributed or Horovod; without both, one rank and via None."""
    found = []
    if torch.distributed.is_initialized():
        world_size, rank = torch.distributed.get_world_size(), torch.distributed.get_rank()
        found.append({"world_size": world_size, "rank_reached": rank, "via": "torch.distributed"})
    horovod = sys.modules.get(MODULE)
    if horovod is not None and horovod.is_initialized():
        found.append({"world_size": horovod.size(), "rank_reached": horovod.rank(), "via": "horovod"})
    alone = {"world_size": 1, "rank_reached": 0, "via": None}
    return max(found, key=lambda topology: topology["world_size"], default=alone)
