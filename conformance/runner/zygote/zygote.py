"""The process that imports torch once, stays single-threaded, and forks a server for each trainer."""

from __future__ import annotations

import gc
import os
import platform
import resource
import signal
import socket
import time
from typing import Any

import torch

from conformance.runner.rank.preload import preload, warm_up
from conformance.runner.server import server
from conformance.runner.system import linux, processes
from conformance.runner.system.gpus import gpus
from conformance.runner.system.protocol import Channel
from conformance.runner.zygote import safety

_POLL = 0.005
# Seconds that servers have to end their ranks when the front process is gone.
_PATIENCE = 3.0


def main(connection: str, name: str) -> None:
    """``connection``: the descriptor of this end of the socket; ``name`` is for readers of process lists."""
    client = Channel(socket.socket(fileno=int(connection)))
    prepare()
    answer(client)


def prepare() -> None:
    """Make this process one that others are forked from."""
    # The front process may have blocked or ignored what our children are to be told by.
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # A rank that aborts must not leave a core file in the user's folder.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    preload()
    warm_up()
    # Nothing is collected before: where garbage has been, children would put what is theirs, and copy those pages.
    gc.freeze()
    gc.enable()
    linux.gather_memory()


def answer(client: Channel) -> None:
    """Be the zygote of ``client`` until it is gone."""
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    client.send({"versions": versions, "gpus": gpus()})
    Zygote(client).run()


class Zygote:
    """Forks servers and waits for their end, as it is asked to."""

    def __init__(self, client: Channel) -> None:
        self._client = client
        self._servers: set[int] = set()

    def run(self) -> None:
        try:
            while (request := self._client.receive()) is not None:
                if "end" in request:
                    self._client.send({"status": self._end(request["end"], request["patience"])})
                else:
                    self._client.send({"pid": self._fork(request, *self._client.take_descriptors())})
        finally:
            deadline = time.monotonic() + _PATIENCE
            for pid in list(self._servers):
                self._end(pid, deadline - time.monotonic())

    def _fork(self, request: dict[str, Any], connection: int, output: int) -> int:
        unsafe = safety.why_not_fork()

        def body() -> int:
            self._client.close()
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.close(output)
            return server.serve(Channel(socket.socket(fileno=connection)), request, unsafe)

        pid = processes.fork(body)
        os.close(connection)
        os.close(output)
        self._servers.add(pid)
        return pid

    def _end(self, pid: int, patience: float) -> int:
        """Wait ``patience`` seconds for a server to end, then kill it. The result is its wait status."""
        deadline = time.monotonic() + patience
        while (status := processes.ended(pid)) is None:
            if time.monotonic() >= deadline:
                processes.kill(pid)
            time.sleep(_POLL)
        self._servers.discard(pid)
        return status
