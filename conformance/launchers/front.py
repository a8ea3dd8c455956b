"""The front: the process of a launch that plans and judges. It waits for the agents, and has each start servers."""

from __future__ import annotations

import socket
from dataclasses import fields
from time import monotonic
from typing import Any

from conformance.adapter.loading import TrainerError
from conformance.launchers import LaunchError
from conformance.launchers.agent import FrontAddress, Hello
from conformance.runner.front.zygote_client import Serving
from conformance.runner.outcome import HostLost, RunnerError
from conformance.runner.system.protocol import Caller, Callers, Channel

# Seconds; an agent answers at once, unless it waits for the end of a server on a busy machine.
_ANSWER_LIMIT = 60.0


class RemoteStarter:
    """The `ServerStarter` of one machine, at the other end of a connection."""

    def __init__(self, hello: Hello, channel: Channel, front: Front) -> None:
        self.hello = hello
        self.name = hello.host
        self.versions = hello.versions
        self.gpus = hello.gpus
        self.channel = channel
        self.lost = False
        self._front = front

    def get(self) -> RemoteStarter:
        """This starter. Raises HostLost if its machine is lost."""
        if self.lost:
            raise self._lose()
        return self

    def serve(self, target: str, backend: str, *, spawn: str | None, limit: float) -> Serving:
        ticket = self._front.ticket()
        self.send({"serve": ticket, "target": target, "backend": backend, "spawn": spawn, "limit": limit})
        # The agent's answer and the server's call come in either order.
        connection = answer = None
        deadline = monotonic() + _ANSWER_LIMIT + limit
        try:
            while connection is None:
                caller = self._front.callers.next(deadline, self.channel if answer is None else None)
                if caller is None:
                    answer = self.receive(_ANSWER_LIMIT)
                elif caller.message == {"ticket": ticket}:
                    connection = caller.channel
                else:
                    caller.channel.close()
            answer = answer or self.receive(_ANSWER_LIMIT + limit)
        except BaseException as error:
            if connection is not None:
                connection.close()
            if isinstance(error, TimeoutError):
                raise self._lose() from error
            raise
        return Serving(RemoteServer(self, int(answer["pid"])), connection)

    def ask(self, request: dict[str, Any], patience: float = 0.0) -> dict[str, Any]:
        """The agent's answer to a request. Raises TrainerError, RunnerError, HostLost."""
        self.send(request)
        return self.receive(_ANSWER_LIMIT + patience)

    def send(self, request: dict[str, Any]) -> None:
        self.get()
        try:
            self.channel.send(request)
        except OSError as error:
            raise self._lose() from error

    def receive(self, limit: float) -> dict[str, Any]:
        try:
            answer = self.channel.receive(limit)
        except OSError as error:
            raise self._lose() from error
        if answer is None:
            raise self._lose()
        if "trainer" in answer:
            raise TrainerError(answer["trainer"])
        if "failure" in answer:
            raise RunnerError(f"{self.name}: {answer['failure']}")
        return answer

    def _lose(self) -> HostLost:
        self.lost = True
        return HostLost(f"lost the connection to {self.name} (rank {self.hello.number} of the launch)")


class RemoteServer:
    """A server that ``starter`` has started."""

    def __init__(self, starter: RemoteStarter, pid: int) -> None:
        self._starter = starter
        self.pid = pid

    def end(self, patience: float) -> str:
        try:
            return str(self._starter.ask({"end": self.pid, "patience": patience}, patience)["how"])
        except HostLost:
            return f"{self._starter.name} is lost"
        except RunnerError as error:
            return str(error)

    def last_output(self) -> str:
        try:
            return str(self._starter.ask({"last_output": self.pid})["text"])
        except HostLost:
            return ""


class Front:
    """Accepts the connections of agents and of the servers that they start.

    ``size``: number of agents to expect. ``token``: the first message of agents and servers must have it.
    """

    def __init__(self, listener: socket.socket, size: int, token: str) -> None:
        self.callers = Callers(listener, token)
        self.address = FrontAddress(*self.callers.address, token)
        self.agents: list[RemoteStarter] = []
        self._size = size
        self._tickets = 0

    def close(self) -> None:
        """Hang up, which ends agents and servers."""
        for agent in self.agents:
            agent.channel.close()
        self.callers.close()

    def gather(self, limit: float) -> None:
        """Wait until all agents have connected. Raises LaunchError."""
        deadline = monotonic() + limit
        while len(self.agents) < self._size:
            try:
                caller = self.callers.next(deadline)
            except TimeoutError as error:
                here = {agent.hello.number for agent in self.agents}
                missing = ", ".join(str(number) for number in range(self._size) if number not in here)
                raise LaunchError(
                    f"only {len(here)} of {self._size} processes connected within {limit:g} s; missing ranks: {missing}"
                ) from error
            if caller is not None:
                self._admit(caller)
        self.agents.sort(key=lambda agent: agent.hello.number)
        self._name()

    def _admit(self, caller: Caller) -> None:
        """Add an agent. Raises LaunchError if it failed."""
        channel, message = caller
        if message.keys() == {field.name for field in fields(Hello)}:
            self.agents.append(RemoteStarter(Hello(**message), channel, self))
            return
        channel.close()
        if message.keys() == {"failure"}:
            raise LaunchError(message["failure"])

    def _name(self) -> None:
        """Append numbers to the names of machines with the same name."""
        nodes: dict[str, list[str]] = {}
        for agent in self.agents:
            known = nodes.setdefault(agent.hello.host, [])
            if agent.hello.node not in known:
                known.append(agent.hello.node)
        for agent in self.agents:
            known = nodes[agent.hello.host]
            if len(known) > 1:
                agent.name += f"-{known.index(agent.hello.node)}"

    def ticket(self) -> int:
        """A number that identifies a connection."""
        self._tickets += 1
        return self._tickets
