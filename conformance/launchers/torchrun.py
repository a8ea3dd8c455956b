"""Processes that torchrun started, or Slurm's srun with torch's MASTER_ADDR and MASTER_PORT."""

from __future__ import annotations

import hashlib
import secrets
import socket
from collections.abc import Mapping
from datetime import timedelta
from importlib import import_module
from typing import Any

from conformance.launchers import LaunchError
from conformance.launchers.agent import JOIN_LIMIT, Member
from conformance.launchers.context import LauncherContext, number, require
from conformance.launchers.network import FrontAddress, address_towards, connect

_KEY = "conformance/front"
# What all processes of one launch have in common.
_OF_LAUNCH = ("SLURM_JOB_ID", "SLURM_STEP_ID", "TORCHELASTIC_RUN_ID")


def read(environ: Mapping[str, str]) -> LauncherContext:
    """RANK and WORLD_SIZE, or SLURM_PROCID and SLURM_NTASKS; MASTER_ADDR and MASTER_PORT. Raises LaunchError."""
    by_slurm = "RANK" not in environ and "SLURM_PROCID" in environ
    rank, size = ("SLURM_PROCID", "SLURM_NTASKS") if by_slurm else ("RANK", "WORLD_SIZE")
    start = "torchrun --no-python ... conformance run --launcher torchrun ..., or srun with the MASTER_ variables"
    require(environ, (rank, size, "MASTER_ADDR", "MASTER_PORT"), "torchrun", start)
    member = Member(
        number(environ, rank),
        environ.get("SLURMD_NODENAME") or socket.gethostname(),
        environ.get("GROUP_RANK") or environ.get("SLURM_NODEID") or "",
    )
    master = environ["MASTER_ADDR"], number(environ, "MASTER_PORT")
    if environ.get("TORCHELASTIC_USE_AGENT_STORE") == str(True):
        return _by_store(member, number(environ, size), master)
    # Nothing passes a secret on here. This one only tells launches apart.
    token = hashlib.sha256(
        "\0".join([*map(str, master), *(environ.get(name, "") for name in _OF_LAUNCH)]).encode()
    ).hexdigest()
    front = FrontAddress(*master, token)
    return LauncherContext(member, number(environ, size), front, publish=lambda address: None, find=lambda: front)


def _by_store(member: Member, size: int, master: tuple[str, int]) -> LauncherContext:
    """torchrun's agent already has a store at the master's port, not always on the machine of rank 0."""

    def publish(address: FrontAddress) -> None:
        _store(master).set(_KEY, str(address))

    def find() -> FrontAddress:
        try:
            return FrontAddress.parse(_store(master).get(_KEY).decode())
        except import_module("torch.distributed").DistError as error:
            raise LaunchError(f"the process of rank 0 did not publish its address within {JOIN_LIMIT:g} s") from error

    return LauncherContext(
        member, size, FrontAddress(address_towards(*master), 0, secrets.token_hex(16)), publish, find
    )


def _store(master: tuple[str, int]) -> Any:
    """Raises LaunchError."""
    # torch would print several lines for each attempt.
    connect(*master, JOIN_LIMIT, "torchrun's store").close()
    distributed: Any = import_module("torch.distributed")
    return distributed.TCPStore(*master, is_master=False, timeout=timedelta(seconds=JOIN_LIMIT))
