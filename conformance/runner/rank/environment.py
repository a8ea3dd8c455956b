"""The environment variables that give frameworks their rank and keep them on loopback."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from conformance.adapter.backends import BACKENDS, Topology

LOOPBACK = "127.0.0.1"
INTERFACE = "lo0" if sys.platform == "darwin" else "lo"


@dataclass(frozen=True)
class NodeShare:
    """The ranks of a case that one machine starts, and their rendezvous with the others.

    Attributes:
        ranks: numbers of the ranks.
        address: the IPv4 address of the rendezvous.
        port: the port of the rendezvous; None if this machine hosts it.
        interface: the network interface for messages between ranks.
    """

    ranks: Sequence[int]
    address: str = LOOPBACK
    port: int | None = None
    interface: str = INTERFACE


_EVERYWHERE = {
    # NumPy's BLAS would start a thread pool on import, which makes forking unsafe.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "GLOO_SOCKET_IFNAME": INTERFACE,
    "NCCL_SOCKET_IFNAME": INTERFACE,
    "HOROVOD_GLOO_IFACE": INTERFACE,
    # Makes `torch.cuda.is_available()` ask NVML: unlike the CUDA runtime, NVML leaves the process safe to fork.
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    # PyArrow's allocator starts a thread on import too.
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
    # Ray has no other way to stay on loopback on Linux (ray/_private/services.py, get_node_ip_address).
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    # A rank's output must survive its death.
    "PYTHONUNBUFFERED": "1",
}

_UNLESS_SET = {
    # Ray's own default for a cluster that it starts. For a cluster at an address, it must be set before Ray is imported
    # (ray/_private/worker.py, init).
    "RAY_AUTH_MODE": "token",
}

# With these, a framework believes that it was launched. The harness itself may run in a batch job or torchrun.
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
    """``environ`` without the variables of launchers, and with settings for threads and loopback."""
    kept = {
        name: value
        for name, value in environ.items()
        if name not in _LAUNCH_VARIABLES and not name.startswith(_OTHER_LAUNCHERS)
    }
    return {**_UNLESS_SET, **kept, **_EVERYWHERE}


def rank_environment(spec: Mapping[str, Any], rank: int, share: NodeShare) -> dict[str, str]:
    """The variables of rank ``rank`` of this share; empty without a rendezvous."""
    if share.port is None:
        return {}
    topology = Topology.of(spec)
    if BACKENDS[spec["backend"]].rendezvous == "horovod":
        return {**_horovod(topology, rank, share.address, share.port), "HOROVOD_GLOO_IFACE": share.interface}
    sockets = {"GLOO_SOCKET_IFNAME": share.interface, "NCCL_SOCKET_IFNAME": share.interface}
    return {**_torchrun(str(spec["case"]), topology, rank, share.address, share.port), **sockets}


def _torchrun(case: str, topology: Topology, rank: int, address: str, port: int) -> dict[str, str]:
    """The variables that torchrun sets, documented at https://docs.pytorch.org/docs/stable/elastic/run.html."""
    return {
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
        "RANK": str(rank),
        "WORLD_SIZE": str(len(topology.hosts)),
        "LOCAL_RANK": str(topology.local_rank(rank)),
        "LOCAL_WORLD_SIZE": str(topology.local_size(rank)),
        "GROUP_RANK": str(topology.node(rank)),
        "GROUP_WORLD_SIZE": str(len(topology.nodes)),
        "ROLE_NAME": "default",
        "ROLE_RANK": str(rank),
        "ROLE_WORLD_SIZE": str(len(topology.hosts)),
        "TORCHELASTIC_RUN_ID": case,
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        # Keeps rank 0 from hosting the store, which another process hosts.
        "TORCHELASTIC_USE_AGENT_STORE": str(True),
    }


def _horovod(topology: Topology, rank: int, address: str, port: int) -> dict[str, str]:
    """The variables that horovodrun sets for gloo (horovod/runner/gloo_run.py)."""
    across = topology.across(rank)
    return {
        "HOROVOD_RANK": str(rank),
        "HOROVOD_SIZE": str(len(topology.hosts)),
        "HOROVOD_LOCAL_RANK": str(topology.local_rank(rank)),
        "HOROVOD_LOCAL_SIZE": str(topology.local_size(rank)),
        "HOROVOD_CROSS_RANK": str(across.index(rank)),
        "HOROVOD_CROSS_SIZE": str(len(across)),
        "HOROVOD_HOSTNAME": topology.hosts[rank],
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": address,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        # Milliseconds between checks of the queue of tensors.
        "HOROVOD_CYCLE_TIME": os.environ.get("HOROVOD_CYCLE_TIME", "1"),
        # Bytes of the fusion buffer. The largest workload must not fit; it would into the default of 128 MiB.
        "HOROVOD_FUSION_THRESHOLD": os.environ.get("HOROVOD_FUSION_THRESHOLD", str(2 * 2**20)),
    }
