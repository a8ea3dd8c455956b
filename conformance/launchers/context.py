"""Reads a launcher's environment variables, and finds the process of rank 0.

torchrun provides a store, Slurm's srun torch's MASTER_ADDR and MASTER_PORT, and horovodrun over gloo its rendezvous, a
key-value store over HTTP."""

from __future__ import annotations

import hashlib
import secrets
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from time import monotonic, sleep
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from conformance.launchers import LaunchError
from conformance.launchers.agent import JOIN_LIMIT, FrontAddress, Member, address_towards, connect
from conformance.trace.short_texts import enumerated


@dataclass(frozen=True)
class LauncherContext:
    """One process's view of its launch.

    Attributes:
        member: this process. size: number of processes.
        at: the address where the process of rank 0 should listen; port 0 for any port.
        publish: rank 0 calls it with its actual address. find: returns that address to the others.
    """

    member: Member
    size: int
    at: FrontAddress
    publish: Callable[[FrontAddress], None]
    find: Callable[[], FrontAddress]


def require(environ: Mapping[str, str], names: Sequence[str], launcher: str, start: str) -> None:
    """Raise LaunchError if one of the variables is not set; ``start``: a command that sets them."""
    missing = [name for name in names if name not in environ]
    if missing:
        be = "is" if len(missing) == 1 else "are"
        raise LaunchError(
            f"--launcher {launcher}: {enumerated(missing)} {be} not set in the environment, so this process was not "
            f"started by {launcher}; start it with: {start}"
        )


def number(environ: Mapping[str, str], name: str) -> int:
    """The value of a variable that is a number. Raises LaunchError."""
    try:
        return int(environ[name])
    except ValueError as error:
        raise LaunchError(f"{name} is {environ[name]!r}, but must be a whole number; the launcher sets it") from error


_KEY = "conformance/front"
# Variables with the same value in all processes of one launch.
_OF_LAUNCH = ("SLURM_JOB_ID", "SLURM_STEP_ID", "TORCHELASTIC_RUN_ID")


def read_torchrun(environ: Mapping[str, str]) -> LauncherContext:
    """The launch by RANK and WORLD_SIZE, or SLURM_PROCID and SLURM_NTASKS; and MASTER_ADDR and MASTER_PORT.

    Raises LaunchError.
    """
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
    # Not a secret, which nothing here could pass on; it only distinguishes launches.
    token = hashlib.sha256(
        "\0".join([*map(str, master), *(environ.get(name, "") for name in _OF_LAUNCH)]).encode()
    ).hexdigest()
    front = FrontAddress(*master, token)
    return LauncherContext(member, number(environ, size), front, publish=lambda address: None, find=lambda: front)


def _by_store(member: Member, size: int, master: tuple[str, int]) -> LauncherContext:
    """A launch with the store of torchrun's agent at the master's port, which may be on another machine than rank 0."""

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
    """torchrun's store. Raises LaunchError."""
    # Connects first, because torch would print several lines for each failed attempt.
    connect(*master, JOIN_LIMIT, "torchrun's store").close()
    distributed: Any = import_module("torch.distributed")
    return distributed.TCPStore(*master, is_master=False, timeout=timedelta(seconds=JOIN_LIMIT))


_NAMES = (
    *("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_HOSTNAME"),
    *("HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT"),
)
# Seconds.
_PAUSE = 0.1
_REQUEST_LIMIT = 10.0
_NOT_FOUND = 404


def read_horovodrun(environ: Mapping[str, str]) -> LauncherContext:
    """The launch by horovodrun's variables. Raises LaunchError."""
    start = "horovodrun --gloo -np ... conformance run --launcher horovodrun ..."
    require(environ, _NAMES, "horovodrun", start)
    # The user named the hosts, so their names are unique.
    member = Member(number(environ, "HOROVOD_RANK"), environ["HOROVOD_HOSTNAME"], environ["HOROVOD_HOSTNAME"])
    store = environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"], number(environ, "HOROVOD_GLOO_RENDEZVOUS_PORT")
    url = f"http://{store[0]}:{store[1]}/conformance/front"

    def publish(address: FrontAddress) -> None:
        _ask(Request(url, data=str(address).encode(), method="PUT"), store)

    def find() -> FrontAddress:
        deadline = monotonic() + JOIN_LIMIT
        while (found := _ask(Request(url), store)) is None:
            if monotonic() > deadline:
                raise LaunchError(f"the process of rank 0 did not publish its address within {JOIN_LIMIT:g} s")
            sleep(_PAUSE)
        return FrontAddress.parse(found)

    at = FrontAddress(address_towards(*store), 0, secrets.token_hex(16))
    return LauncherContext(member, number(environ, "HOROVOD_SIZE"), at, publish, find)


def _ask(request: Request, store: tuple[str, int]) -> str | None:
    """The answer of horovodrun's rendezvous; None if there is no such key yet. Raises LaunchError."""
    where = f"horovodrun's rendezvous at {store[0]}:{store[1]}"
    try:
        with urlopen(request, timeout=_REQUEST_LIMIT) as answer:
            return str(answer.read().decode())
    except HTTPError as error:
        if error.code == _NOT_FOUND:
            return None
        raise LaunchError(f"{where} answered with HTTP status {error.code}") from error
    except (URLError, OSError) as error:
        raise LaunchError(f"cannot reach {where}: {error}") from error
