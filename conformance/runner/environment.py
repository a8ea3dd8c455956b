"""The environment variables by which frameworks learn their rank, and the ones that keep them on loopback."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

LOOPBACK = "127.0.0.1"
_INTERFACE = "lo0" if sys.platform == "darwin" else "lo"
_HOST = "localhost"

_EVERYWHERE = {
    # A thread pool that is started on import makes forking unsafe; NumPy's BLAS does that unless told not to.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "GLOO_SOCKET_IFNAME": _INTERFACE,
    "NCCL_SOCKET_IFNAME": _INTERFACE,
    "HOROVOD_GLOO_IFACE": _INTERFACE,
    # What a rank printed must be there when it is killed.
    "PYTHONUNBUFFERED": "1",
}

# From these a framework concludes that it was launched: we may run inside of a batch job or torchrun.
_OTHER_LAUNCHERS = ("TORCHELASTIC_", "SLURM_", "OMPI_", "PMI_", "PMIX_", "MV2_")
_TORCHRUN = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"),
    *("ROLE_RANK", "ROLE_WORLD_SIZE", "ROLE_NAME", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT"),
)
_HOROVODRUN = (
    *("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE", "HOROVOD_CROSS_RANK"),
    *("HOROVOD_CROSS_SIZE", "HOROVOD_HOSTNAME", "HOROVOD_GLOO_RENDEZVOUS_ADDR"),
    *("HOROVOD_GLOO_RENDEZVOUS_PORT", "HOROVOD_ELASTIC"),
)
_LAUNCH_VARIABLES = frozenset([*_TORCHRUN, *_HOROVODRUN])


def base_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """``environ`` without the variables of any launcher, and with ours for threads and loopback."""
    kept = {
        name: value
        for name, value in environ.items()
        if name not in _LAUNCH_VARIABLES and not name.startswith(_OTHER_LAUNCHERS)
    }
    return {**kept, **_EVERYWHERE}


def rank_environment(spec: Mapping[str, Any], rank: int, port: int | None) -> dict[str, str]:
    """The variables that make a process rank ``rank`` of the case; ``port`` is where its rendezvous listens.

    None at all for the backend "single": a framework that saw a rank would set up a process group.
    """
    world_size = int(spec["world_size"])
    if port is None:
        return {}
    if spec["backend"] == "horovod":
        return _horovod(rank, world_size, port)
    return _torchrun(str(spec["case"]), rank, world_size, port)


def _torchrun(case: str, rank: int, world_size: int, port: int) -> dict[str, str]:
    """What torchrun sets, documented at https://docs.pytorch.org/docs/stable/elastic/run.html."""
    return {
        "MASTER_ADDR": LOOPBACK,
        "MASTER_PORT": str(port),
        "RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(world_size),
        "GROUP_RANK": "0",
        "GROUP_WORLD_SIZE": "1",
        "ROLE_NAME": "default",
        "ROLE_RANK": str(rank),
        "ROLE_WORLD_SIZE": str(world_size),
        "TORCHELASTIC_RUN_ID": case,
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        # The store is ours, in a process of its own: no rank has to win a race for the port.
        "TORCHELASTIC_USE_AGENT_STORE": str(True),
    }


def _horovod(rank: int, world_size: int, port: int) -> dict[str, str]:
    """What horovodrun sets for gloo on one host (horovod/runner/gloo_run.py)."""
    return {
        "HOROVOD_RANK": str(rank),
        "HOROVOD_SIZE": str(world_size),
        "HOROVOD_LOCAL_RANK": str(rank),
        "HOROVOD_LOCAL_SIZE": str(world_size),
        "HOROVOD_CROSS_RANK": "0",
        "HOROVOD_CROSS_SIZE": "1",
        "HOROVOD_HOSTNAME": _HOST,
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": LOOPBACK,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_IFACE": _INTERFACE,
        # Milliseconds between two looks at the queue of tensors.
        "HOROVOD_CYCLE_TIME": os.environ.get("HOROVOD_CYCLE_TIME", "1"),
    }
