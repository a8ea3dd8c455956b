"""A zygote: it forks servers for one client, and waits for their end, on request."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from time import monotonic
from typing import Any

from conformance.adapter.loading import Import
from conformance.runner.server import forking, server
from conformance.runner.system import linux
from conformance.runner.system.child import Child
from conformance.runner.system.protocol import Channel

# Seconds that servers have to end their ranks when the front process has ended.
_PATIENCE = 3.0


def serve(client: Channel, hello: Mapping[str, Any], imported: Import) -> int:
    """Fork servers until ``client``, which is greeted first, disconnects; ``imported`` imports their trainers."""
    # The client ends this process, so that it can end its servers even if the process above dies.
    linux.outlive_parent()
    try:
        client.send(hello)
    except BrokenPipeError:
        return 0
    _Loop(client, imported).run()
    return 0


class _Loop:
    def __init__(self, client: Channel, imported: Import) -> None:
        self._client = client
        self._imported = imported
        self._servers: dict[int, Child] = {}

    def run(self) -> None:
        try:
            while (request := self._client.receive()) is not None:
                if "end" in request:
                    status = self._servers.pop(request["end"]).end(request["patience"])
                    self._client.send({"status": status})
                else:
                    self._client.send({"pid": self._fork(request, *self._client.take_descriptors())})
        finally:
            deadline = monotonic() + _PATIENCE
            for server_process in self._servers.values():
                server_process.end(max(0.0, deadline - monotonic()))

    def _fork(self, request: dict[str, Any], connection: int, output: int) -> int:
        unsafe = forking.why_not_fork()

        def body() -> int:
            self._client.close()
            for other in self._servers.values():
                other.close()
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.close(output)
            return server.serve(Channel(socket.socket(fileno=connection)), request, unsafe, self._imported)

        child = Child(body)
        os.close(connection)
        os.close(output)
        self._servers[child.pid] = child
        return child.pid
