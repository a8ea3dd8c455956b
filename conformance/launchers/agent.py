"""The process of a launch that starts servers on its machine when the front asks; the servers talk to the front."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from conformance.launchers import LaunchError
from conformance.launchers.network import connect, interface_of
from conformance.runner.front.client import RunnerError, shared
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


def attend(front: tuple[str, int], member: Member) -> None:
    """Serve the front until it hangs up. Raises LaunchError, RunnerError."""
    with connect(*front, JOIN_LIMIT) as connection:
        channel = Channel(connection)
        try:
            hello = asdict(_hello(member, str(connection.getsockname()[0])))
        except (RunnerError, LaunchError) as error:
            _report(channel, {"failure": f"{member.host}: {error}"})
            raise
        if not _report(channel, hello):
            return
        while (request := channel.receive()) is not None:
            try:
                answer = _answer(request, front)
            except (RunnerError, LaunchError) as error:
                answer = {"failure": str(error)}
            if not _report(channel, answer):
                return


def _report(channel: Channel, message: dict[str, Any]) -> bool:
    """Send a report; whether the front is still connected."""
    try:
        channel.send(message)
    except (BrokenPipeError, ConnectionResetError):
        return False
    return True


def _hello(member: Member, address: str) -> Hello:
    """Raises LaunchError, RunnerError."""
    interface = interface_of(address)
    zygote = shared.get()
    return Hello(member.number, member.host, member.node, address, interface, zygote.versions, zygote.gpus)


def _answer(request: dict[str, Any], front: tuple[str, int]) -> dict[str, Any]:
    """Raises RunnerError, LaunchError."""
    zygote = shared.get()
    match request:
        case {"serve": ticket, "target": target, "backend": backend, "spawn": spawn}:
            with connect(*front, JOIN_LIMIT) as client:
                Channel(client).send({"ticket": ticket})
                return {"pid": zygote.fork(target, backend, client, spawn=spawn)}
        case {"end": pid, "patience": patience}:
            return {"how": zygote.end(pid, patience)}
        case {"last_output": pid}:
            return {"text": zygote.last_output(pid)}
        case {"stack": pid}:
            return {"text": zygote.stack(pid)}
    raise RunnerError(f"the front sent an unknown request: {request}")
