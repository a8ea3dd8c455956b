"""How many ranks a trainer really brought together."""

from __future__ import annotations

import sys
from typing import Any

import torch

from conformance.trace.state.horovod import MODULE


def reached() -> dict[str, Any]:
    """{world_size, rank_reached, via} of torch.distributed or Horovod; without them one rank, via null."""
    found = []
    if torch.distributed.is_initialized():
        world_size, rank = torch.distributed.get_world_size(), torch.distributed.get_rank()
        found.append({"world_size": world_size, "rank_reached": rank, "via": "torch.distributed"})
    horovod = sys.modules.get(MODULE)
    if horovod is not None and horovod.is_initialized():
        found.append({"world_size": horovod.size(), "rank_reached": horovod.rank(), "via": "horovod"})
    alone = {"world_size": 1, "rank_reached": 0, "via": None}
    return max(found, key=lambda topology: topology["world_size"], default=alone)
