"""The process that imports a trainer once for all clients with the same environment, and forks their servers."""

from __future__ import annotations

import faulthandler
import gc
import math
import os
import selectors
import signal
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any

from conformance.adapter.loading import Import
from conformance.runner.outcome import describe_status
from conformance.runner.rank.reporting import DESCRIPTORS_LOST
from conformance.runner.rank.requirements import remembered
from conformance.runner.system import stacks
from conformance.runner.system.child import POLL, Child
from conformance.runner.system.descriptors import Known, Output, last_line, print_to
from conformance.runner.system.protocol import Channel
from conformance.runner.zygote import forking, server

# Seconds for a server to end its ranks after the front process has ended.
_PATIENCE = 3.0


@dataclass(eq=False)
class _Server:
    process: Child
    client: Channel
    deadline: float = math.inf


class Nursery:
    """The servers that are children of this process.

    Each server's client gets {"pid"} and, at the server's end, its wait status as {"status"}. Any message of the client
    kills the server. After the client has disconnected, so does a time limit.
    """

    def __init__(self, selector: selectors.BaseSelector, when_empty: Callable[[], object] = lambda: None) -> None:
        """``when_empty``: called when the last server has ended, before its client gets the status."""
        self._selector = selector
        self._when_empty = when_empty
        self._servers: list[_Server] = []

    @property
    def is_empty(self) -> bool:
        return not self._servers

    def fork(self, client: Channel, connection: int, output: int, become: Callable[[Channel], int]) -> None:
        """Fork a server that prints to ``output`` and serves ``connection`` by calling ``become``."""

        def body() -> int:
            self.close()
            client.close()
            print_to(output)
            return become(Channel(socket.socket(fileno=connection)))

        self.adopt(Child(body), client)
        os.close(connection)
        os.close(output)

    def adopt(self, process: Child, client: Channel) -> None:
        """Add a child of this process that has become a server."""
        server = _Server(process, client)
        self._servers.append(server)
        self._selector.register(client, selectors.EVENT_READ, partial(self._hear, server))
        if process.descriptor is not None:
            # The event only wakes the loop; `advance` then finds the ended server.
            self._selector.register(process.descriptor, selectors.EVENT_READ, lambda: None)
        with suppress(OSError):
            client.send({"pid": process.pid})

    def patience(self) -> float | None:
        """Seconds until the next call of `advance`, None for any time."""
        if any(server.process.descriptor is None for server in self._servers):
            return POLL
        soonest = min((server.deadline for server in self._servers), default=math.inf)
        return None if soonest == math.inf else max(0.0, soonest - monotonic())

    def advance(self) -> None:
        """Remove servers that have ended, and end those past their deadline."""
        for one in [*self._servers]:
            watched = [one.client, one.process.descriptor]
            if one.process.poll() is None and monotonic() < one.deadline:
                continue
            status = one.process.end()
            for source in watched:
                if source is not None and source in self._selector.get_map():
                    self._selector.unregister(source)
            self._servers.remove(one)
            if self.is_empty:
                self._when_empty()
            with suppress(OSError):
                one.client.send({"status": status})
            one.client.close()

    def close(self) -> None:
        """Close, in a child, everything of the parent."""
        for one in self._servers:
            one.client.close()
            one.process.close()

    def _hear(self, one: _Server) -> None:
        one.deadline = monotonic() + (0.0 if one.client.fill() else _PATIENCE)
        self._selector.unregister(one.client)


# Seconds for an importer to end after it has disconnected.
_END_LIMIT = 1.0
# pytest's variables with the worker and the test: the only differences between the workers of a run.
_OF_WORKER = "PYTEST_"


def shared_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables for the import of a trainer, the same for all workers of a run."""
    return {name: value for name, value in environment.items() if not name.startswith(_OF_WORKER)}


@dataclass(frozen=True)
class Client:
    """A process that wants a server.

    Attributes:
        channel: gets {"pid"} or {"error"}, see `Nursery`.
        request: {"target", "place", "backend", "spawn", "limit", "environment", "folder", "path"}.
        descriptors: those of the server's connection and of its output.
    """

    channel: Channel
    request: dict[str, Any]
    descriptors: list[int]

    def close(self) -> None:
        self.channel.close()
        self.close_descriptors()

    def close_descriptors(self) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)


class Importer(stacks.Answering):
    """An importer, as the process that forks it sees it.

    Attributes:
        channel: delivers {"imported": whether it can be forked}, and ends when all servers have ended.
        watched: readable when it has sent something or ended. Two sources, because its children may keep its channel
            open.
        output: its standard output and error.
        waiting: clients that wait for the import, until ``deadline``.
        is_importing: the import has not ended.
        can_be_forked: it can serve more than one client.
        was_killed: it ended by SIGKILL, perhaps because the system ran out of memory.
    """

    def __init__(self, name: str, client: Client, unsafe: forking.Unsafe | None, close_all: Callable[[], None]) -> None:
        """``client`` waits for it. ``unsafe``: why this process must not be forked; ``close_all``: called in the
        fork."""
        self.name = name
        self.channel, theirs = map(Channel, socket.socketpair())
        source, sink = os.pipe()
        self.output = Output(source)
        self.waiting = [client]
        self.is_importing = self.can_be_forked = True
        self.was_killed = False
        self._place = client.request["place"]
        self._limit = float(client.request["limit"])
        self.deadline = monotonic() + self._limit

        def body() -> int:
            close_all()
            client.close()
            self.channel.close()
            os.close(source)
            print_to(sink)
            return _become(theirs, client.request, unsafe)

        self._child = Child(body)
        self.watched: list[Channel | int] = [
            self.channel,
            *([] if self._child.descriptor is None else [self._child.descriptor]),
        ]
        theirs.close()
        os.close(sink)

    def admit(self, client: Client) -> None:
        """Have it fork a server for a client, or become that server. Raises OSError if it has ended."""
        own = {name: value for name, value in client.request["environment"].items() if name.startswith(_OF_WORKER)}
        wanted = {name: client.request[name] for name in ("target", "backend", "spawn")}
        self.channel.send({**wanted, "environment": own}, [client.channel.fileno(), *client.descriptors])

    def release(self) -> Child:
        """Its process, which has become a server and no longer ends with this importer."""
        self.channel.close()
        os.close(self.output.source)
        return self._child

    def why_late(self) -> str:
        """The error if the import has not ended at the deadline."""
        stacks.request([self])
        return f"{self._place}: import took longer than {self._limit:g} s{self._at_line()}"

    def ask_for_stack(self) -> bool:
        stacks.ask(self._child.pid)
        return True

    def stack_size(self) -> int:
        self.output.read()
        return self.output.count

    def why_ended(self) -> str:
        """End it; returns the error if it ended or disconnected during the import."""
        has_ended = self._child.wait(_END_LIMIT)
        status = self._child.end()
        self.was_killed = has_ended and status == signal.SIGKILL
        if not has_ended or status == DESCRIPTORS_LOST << 8:
            return self.why_unreadable()
        words = last_line(self.output.text())
        why = self._at_line() or (f"; it last printed: {words}" if words else "")
        return f"{self._place}: import ended the process ({describe_status(status)}){why}"

    def why_unreadable(self) -> str:
        """The error if the trainer has closed or written to its channel."""
        return f"{self._place}: import closed or wrote to file descriptors it had not opened"

    def end(self) -> None:
        """Hang up, and kill it if it continues."""
        self.channel.close()
        self._child.end(0.0 if self.is_importing else _END_LIMIT)
        os.close(self.output.source)

    def wait(self) -> None:
        """Hang up, and wait for its servers."""
        self.channel.close()
        self._child.end(0.0 if self.is_importing else None)

    def close(self) -> None:
        """Close, in another child, everything of the parent."""
        self.channel.close()
        os.close(self.output.source)
        self._child.close()
        for client in self.waiting:
            client.close()

    def _at_line(self) -> str:
        line = stacks.line_of_trainer(self.output.text())
        return f" at {line}" if line else ""


def _become(parent: Channel, request: dict[str, Any], unsafe: forking.Unsafe | None) -> int:
    faulthandler.enable(file=2)
    stacks.answer_requests(2)
    os.environ.clear()
    os.environ.update(shared_environment(request["environment"]))
    known, process = Known.of(parent.fileno()), os.getpid()
    server.move(request)
    imported = remembered(request["place"])
    if os.getpid() != process:
        # This process was forked by the import.
        return 0
    if not known.is_intact:
        return DESCRIPTORS_LOST
    can_be_forked = unsafe is None and forking.why_not_fork() is None
    parent.send({"imported": can_be_forked})
    if can_be_forked:
        gc.freeze()
        _Serving(parent, imported).run()
        return 0
    if (admitted := _next(parent)) is None:
        return 0
    wanted, client, connection, output = admitted
    client.close()
    print_to(output)
    return server.serve(Channel(socket.socket(fileno=connection)), wanted, unsafe, imported)


class _Serving:
    """Forks a server for each client from ``parent``, until all have ended."""

    def __init__(self, parent: Channel, imported: Import) -> None:
        self._parent = parent
        self._imported = imported
        self._selector = selectors.DefaultSelector()
        self._selector.register(parent, selectors.EVENT_READ, self._admit)
        self._nursery = Nursery(self._selector, self._leave)
        self._is_over = False

    def run(self) -> None:
        while not (self._is_over and self._nursery.is_empty):
            for key, _ in self._selector.select(self._nursery.patience()):
                key.data()
            self._nursery.advance()

    def _admit(self) -> None:
        if (admitted := _next(self._parent)) is None:
            self._selector.unregister(self._parent)
            self._is_over = True
            return
        wanted, client, connection, output = admitted
        self._nursery.fork(client, connection, output, partial(self._serve, wanted))

    def _leave(self) -> None:
        """Accept no more clients from ``parent``, unless one is waiting already."""
        if not self._parent.is_readable(0.0):
            self._parent.cut()
            self._is_over = True

    def _serve(self, wanted: dict[str, Any], connection: Channel) -> int:
        self._selector.close()
        self._parent.close()
        os.environ.update(wanted["environment"])
        return server.serve(connection, wanted, None, self._imported)


def _next(parent: Channel) -> tuple[dict[str, Any], Channel, int, int] | None:
    """The next client's request, channel, connection and output; None if there is none."""
    if (wanted := parent.receive()) is None:
        return None
    client, connection, output = parent.take_descriptors()
    return wanted, Channel(socket.socket(fileno=client)), connection, output
