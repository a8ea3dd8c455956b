"""The process of a launch that starts servers on its machine when the front asks; the servers talk to the front."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from conformance.launchers import LaunchError
from conformance.launchers.network import FrontAddress, connect, interface_of
from conformance.runner.front.client import RunnerError, TrainerError, shared
from conformance.runner.front.zygote_client import ForkedServer
from conformance.runner.system.protocol import Channel

# Seconds; all start at once, and importing torch may take minutes on busy machines.
JOIN_LIMIT = 300.0


@dataclass(frozen=True)
class Member:
    """A process of a launch.

    Attributes:
        number: its rank in the launch.
        host, node: the name of its machine, and what distinguishes machines of the same name.
    """

    number: int
    host: str
    node: str


@dataclass(frozen=True)
class Hello(Member):
    """How an agent introduces itself.

    Attributes:
        address: where others reach it. interface: the network interface with that address.
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
    """What this machine, with these servers, answers to the front. Raises TrainerError, RunnerError, LaunchError."""
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
