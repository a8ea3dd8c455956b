"""The agent: a process of a launch that starts servers on its machine for the front, and connections between
machines."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from contextlib import suppress
from dataclasses import asdict, dataclass
from time import monotonic, sleep
from typing import Any

from conformance.launchers import LaunchError
from conformance.runner.front.client import RunnerError, TrainerError, shared
from conformance.runner.front.zygote_client import ForkedServer
from conformance.runner.rank.environment import INTERFACE
from conformance.runner.system.protocol import Channel

# Keepalive detects lost machines: seconds idle, seconds between probes, number of probes.
_KEEP_ALIVE = ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 4))
# The ioctl for the address of an interface (linux/sockios.h). In its ifreq, the first 16 bytes are the name, and bytes
# 20 to 23 the IPv4 address (netdevice(7)).
_SIOCGIFADDR = 0x8915
# Seconds.
_PAUSE = 0.1


@dataclass(frozen=True)
class FrontAddress:
    """The address where the process of rank 0 listens, and the token that it expects first."""

    host: str
    port: int
    token: str

    def __str__(self) -> str:
        return f"{self.host}:{self.port}/{self.token}"

    @classmethod
    def parse(cls, text: str) -> FrontAddress:
        """The inverse of `str`."""
        place, _, token = text.partition("/")
        host, _, port = place.rpartition(":")
        return cls(host, int(port), token)


def listen(address: str, port: int = 0) -> socket.socket:
    """A listening socket at an IPv4 address of this machine. Raises LaunchError."""
    try:
        # Accepted connections inherit these options.
        return tuned(socket.create_server((address, port)))
    except OSError as error:
        why = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
        raise LaunchError(
            f"cannot listen at {address}:{port} for the other processes: {why}; "
            "MASTER_ADDR must be an address of rank 0's machine"
        ) from error


def connect(address: str, port: int, limit: float, peer: str = "the process of rank 0") -> socket.socket:
    """Connect, retrying for ``limit`` seconds until something listens there. Raises LaunchError."""
    deadline = monotonic() + limit
    while True:
        try:
            connection = socket.create_connection((address, port), timeout=max(_PAUSE, deadline - monotonic()))
        except OSError as error:
            # Waiting does not help with a host name that cannot be resolved.
            if monotonic() + _PAUSE > deadline or isinstance(error, socket.gaierror):
                why = error.strerror or str(error)
                raise LaunchError(f"cannot reach {peer} at {address}:{port}: {why}") from error
            sleep(_PAUSE)
            continue
        connection.settimeout(None)
        return tuned(connection)


def tuned(connection: socket.socket) -> socket.socket:
    """Configure a connection to send short messages at once, and to fail when the other machine is lost."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEP_ALIVE:
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
    return connection


def address_towards(host: str, port: int) -> str:
    """The IPv4 address of this machine as seen from ``host``. Raises LaunchError."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, port))
        except OSError as error:
            raise LaunchError(f"no route to {host}: {error.strerror}") from error
        return str(probe.getsockname()[0])


def interface_of(address: str) -> str:
    """The network interface with this address, for gloo and NCCL to use. Raises LaunchError."""
    if chosen := os.environ.get("GLOO_SOCKET_IFNAME"):
        return chosen
    if address.startswith("127."):
        return INTERFACE
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(control, _SIOCGIFADDR, struct.pack("256s", name.encode()))
            except OSError:
                # The interface has no IPv4 address.
                continue
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    raise LaunchError(f"no network interface has the address {address}; name one in GLOO_SOCKET_IFNAME")


# Seconds; all processes start at once, and importing torch may take minutes on busy machines.
JOIN_LIMIT = 300.0


@dataclass(frozen=True)
class Member:
    """A process of a launch.

    Attributes:
        number: its rank in the launch.
        host, node: the name of its machine, and a suffix to distinguish machines of the same name.
    """

    number: int
    host: str
    node: str


@dataclass(frozen=True)
class Hello(Member):
    """The first message of an agent.

    Attributes:
        address: its IPv4 address for the others. interface: the network interface with that address.
    """

    address: str
    interface: str
    versions: dict[str, str]
    gpus: dict[str, Any]


def attend(front: FrontAddress, member: Member) -> None:
    """Serve the front until it hangs up. Raises LaunchError, RunnerError."""
    with connect(front.host, front.port, JOIN_LIMIT) as connection, suppress(BrokenPipeError, ConnectionResetError):
        channel = Channel(connection)
        try:
            address = str(connection.getsockname()[0])
            interface = interface_of(address)
            zygote = shared.get()
            hello = Hello(
                **vars(member), address=address, interface=interface, versions=zygote.versions, gpus=zygote.gpus
            )
        except (RunnerError, LaunchError) as error:
            with suppress(BrokenPipeError, ConnectionResetError):
                channel.send({"token": front.token, "failure": f"{member.host}: {error}"})
            raise
        channel.send({"token": front.token, **asdict(hello)})
        servers: dict[int, ForkedServer] = {}
        while (request := channel.receive()) is not None:
            try:
                answer = _answered(request, front, servers)
            except TrainerError as error:
                answer = {"trainer": str(error)}
            except (RunnerError, LaunchError) as error:
                answer = {"failure": str(error)}
            channel.send(answer)


def _answered(request: dict[str, Any], front: FrontAddress, servers: dict[int, ForkedServer]) -> dict[str, Any]:
    """This machine's answer to a request of the front. Raises TrainerError, RunnerError, LaunchError."""
    match request:
        case {"serve": ticket, "target": target, "backend": backend, "spawn": spawn, "limit": limit}:
            with connect(front.host, front.port, JOIN_LIMIT) as client:
                Channel(client).send({"token": front.token, "ticket": ticket})
                server = shared.get().fork(target, backend, client, spawn=spawn, limit=limit)
            servers[server.pid] = server
            return {"pid": server.pid}
        case {"end": pid, "patience": patience}:
            return {"how": servers.pop(pid).end(patience)}
        case {"last_output": pid}:
            return {"text": servers[pid].last_output()}
    raise RunnerError(f"the front sent an unknown request: {request}")
