"""Forks servers, and tells the client of each how it has ended."""

from __future__ import annotations

import math
import os
import selectors
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from time import monotonic

from conformance.runner.system.child import POLL, Child
from conformance.runner.system.descriptors import print_to
from conformance.runner.system.protocol import Channel

# Seconds that a server has to end its ranks when the front process has ended.
_PATIENCE = 3.0


@dataclass(eq=False)
class _Server:
    process: Child
    client: Channel
    deadline: float = math.inf


class Nursery:
    """The servers that are children of this process.

    The client of each hears {"pid"}, and {"status"}, its wait status, when it has ended. Whatever the client says kills
    it, and so does its silence some time after it has disconnected.
    """

    def __init__(self, selector: selectors.BaseSelector, when_empty: Callable[[], object] = lambda: None) -> None:
        """``when_empty`` is called when the last server has ended, before its client hears of it."""
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
        """Take in a child of this process that has become a server."""
        server = _Server(process, client)
        self._servers.append(server)
        self._selector.register(client, selectors.EVENT_READ, partial(self._hear, server))
        if process.descriptor is not None:
            # `advance` follows, and finds out which of them has ended.
            self._selector.register(process.descriptor, selectors.EVENT_READ, lambda: None)
        with suppress(OSError):
            client.send({"pid": process.pid})

    def patience(self) -> float | None:
        """Seconds until the next call of `advance` is due, if nothing happens before."""
        if any(server.process.descriptor is None for server in self._servers):
            return POLL
        soonest = min((server.deadline for server in self._servers), default=math.inf)
        return None if soonest == math.inf else max(0.0, soonest - monotonic())

    def advance(self) -> None:
        """Note which servers have ended, and end those that have been given up."""
        for server in [*self._servers]:
            watched = [server.client, server.process.descriptor]
            if server.process.poll() is None and monotonic() < server.deadline:
                continue
            status = server.process.end()
            for source in watched:
                if source is not None and source in self._selector.get_map():
                    self._selector.unregister(source)
            self._servers.remove(server)
            if self.is_empty:
                self._when_empty()
            with suppress(OSError):
                server.client.send({"status": status})
            server.client.close()

    def close(self) -> None:
        """In a child: close what belongs to the parent."""
        for server in self._servers:
            server.client.close()
            server.process.close()

    def _hear(self, server: _Server) -> None:
        server.deadline = monotonic() + (0.0 if server.client.fill() else _PATIENCE)
        self._selector.unregister(server.client)
