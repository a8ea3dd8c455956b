"""The process of a launch that plans and judges: it gathers the agents, and has each start servers."""

from __future__ import annotations

import selectors
import socket
from contextlib import ExitStack, suppress
from dataclasses import fields
from time import monotonic
from typing import Any, Self

from conformance.launchers import LaunchError
from conformance.launchers.agent import Hello
from conformance.launchers.network import tuned
from conformance.runner.front.zygote_handle import ServerProcess
from conformance.runner.outcome import HostLost, RunnerError
from conformance.runner.system.protocol import Channel

# Seconds; an agent answers at once, but for the wait for a server's end, on a machine that is busy with much else.
_ANSWER_LIMIT = 60.0
_HELLO_LIMIT = 10.0


class Agent:
    """The `ServerStarter` of one machine, at the other end of a connection."""

    def __init__(self, hello: Hello, channel: Channel, front: Front) -> None:
        self.hello = hello
        self.name = hello.host
        self.versions = hello.versions
        self.gpus = hello.gpus
        self.channel = channel
        self.lost = False
        self._front = front

    def get(self) -> Self:
        """Raises HostLost."""
        if self.lost:
            raise self._gone()
        return self

    def serve(self, target: str, backend: str, *, spawn: str | None) -> ServerProcess:
        ticket = self._front.ticket()
        self._send({"serve": ticket, "target": target, "backend": backend, "spawn": spawn})
        # The agent sends its answer after it has connected: what it answers without is a failure.
        with selectors.DefaultSelector() as selector:
            selector.register(self.channel, selectors.EVENT_READ)
            selector.register(self._front.listener, selectors.EVENT_READ)
            connection = None
            deadline = monotonic() + _ANSWER_LIMIT
            while connection is None:
                ready = [key.fileobj for key, _ in selector.select(max(0.0, deadline - monotonic()))]
                if self._front.listener in ready:
                    connection = self._front.called(ticket)
                elif ready:
                    self._receive(_ANSWER_LIMIT)
                    raise RunnerError(f"{self.name} has started a server that did not call")
                else:
                    raise self._lose()
        return ServerProcess(int(self._receive(_ANSWER_LIMIT)["pid"]), connection)

    def end(self, pid: int, patience: float) -> str:
        try:
            return str(self._ask({"end": pid, "patience": patience}, patience)["how"])
        except HostLost:
            return f"{self.name} is gone"

    def said(self, pid: int) -> str:
        try:
            return str(self._ask({"said": pid})["text"])
        except HostLost:
            return ""

    def stack(self, pid: int) -> str:
        return str(self._ask({"stack": pid})["text"])

    def _ask(self, request: dict[str, Any], patience: float = 0.0) -> dict[str, Any]:
        self._send(request)
        return self._receive(_ANSWER_LIMIT + patience)

    def _send(self, request: dict[str, Any]) -> None:
        self.get()
        try:
            self.channel.send(request)
        except OSError as error:
            raise self._lose() from error

    def _receive(self, limit: float) -> dict[str, Any]:
        try:
            answer = self.channel.receive(limit)
        except OSError as error:
            raise self._lose() from error
        if answer is None:
            raise self._lose()
        if "failure" in answer:
            raise RunnerError(f"{self.name}: {answer['failure']}")
        return answer

    def _lose(self) -> HostLost:
        self.lost = True
        return self._gone()

    def _gone(self) -> HostLost:
        return HostLost(f"our process on {self.name} (rank {self.hello.number} of the launch) is gone")


class Front:
    """Where agents and the servers that they start call.

    ``size``: how many agents there will be.
    """

    def __init__(self, listener: socket.socket, size: int) -> None:
        self.listener = listener
        self.agents: list[Agent] = []
        self._size = size
        self._tickets = 0

    @property
    def address(self) -> tuple[str, int]:
        """Where agents are to call."""
        host, port = self.listener.getsockname()
        return host, port

    def close(self) -> None:
        """Hang up; agents and servers end at that."""
        for agent in self.agents:
            agent.channel.close()
        self.listener.close()

    def gather(self, limit: float) -> None:
        """Wait until all agents are here. Raises LaunchError."""
        deadline = monotonic() + limit
        while len(self.agents) < self._size:
            try:
                agent = self._next(deadline)
            except TimeoutError as error:
                here = {agent.hello.number for agent in self.agents}
                missing = ", ".join(str(number) for number in range(self._size) if number not in here)
                raise LaunchError(
                    f"only {len(here)} of {self._size} processes came within {limit:g} s; missing: {missing}"
                ) from error
            if agent is not None:
                self.agents.append(agent)
        self.listener.settimeout(None)
        self.agents.sort(key=lambda agent: agent.hello.number)
        self._name()

    def _next(self, deadline: float) -> Agent | None:
        """The next agent to call; None if it was somebody else. Raises LaunchError, TimeoutError."""
        # A time limit of zero would stand for a socket that does not wait, and fails in another way.
        self.listener.settimeout(max(1e-3, deadline - monotonic()))
        with ExitStack() as stack:
            channel = Channel(tuned(self.listener.accept()[0]))
            stack.callback(channel.close)
            try:
                said = channel.receive(deadline - monotonic())
            except (ConnectionError, ValueError):
                return None
            if said is not None and said.keys() == {"failure"}:
                raise LaunchError(said["failure"])
            if said is None or said.keys() != {field.name for field in fields(Hello)}:
                return None
            stack.pop_all()
        return Agent(Hello(**said), channel, self)

    def _name(self) -> None:
        """Machines of one name are told apart by number."""
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
        """A number by which a connection is known."""
        self._tickets += 1
        return self._tickets

    def called(self, ticket: int) -> Channel | None:
        """Take in one call; the connection of ``ticket``, if it was that."""
        channel = Channel(tuned(self.listener.accept()[0]))
        with suppress(OSError, ValueError):
            if channel.receive(_HELLO_LIMIT) == {"ticket": ticket}:
                return channel
        channel.close()
        return None
