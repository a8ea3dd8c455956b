"""The process that imports torch once and stays single-threaded; each worker that connects gets a fork of it, which
forks a server for each trainer.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import platform
import resource
import select
import shutil
import signal
import socket
from functools import partial
from time import monotonic
from typing import Any

import torch

from conformance.adapter.loading import TrainerError, load
from conformance.runner.rank.preload import preload, warm_up
from conformance.runner.server import forking, server
from conformance.runner.system import linux, stacks
from conformance.runner.system.child import Child
from conformance.runner.system.gpus import gpus
from conformance.runner.system.protocol import Channel

# Seconds that servers have to end their ranks when the front process has ended.
_PATIENCE = 3.0


def main(listener: str, folder: str) -> None:
    """``listener``: the descriptor of the socket that workers connect to, which is in ``folder``.

    The end of the standard input ends this process; ``folder`` is removed then.
    """
    hold = _replace_input()
    prepare()
    zygotes: list[Child] = []
    with socket.socket(fileno=int(listener)) as workers:
        while hold not in select.select([workers.fileno(), hold], [], [])[0]:
            zygotes = [zygote for zygote in zygotes if zygote.poll() is None]
            worker, _ = workers.accept()
            with worker:
                zygotes.append(Child(partial(_become_zygote, Channel(worker), workers, hold, zygotes)))
    for zygote in zygotes:
        zygote.end(None)
    shutil.rmtree(folder, ignore_errors=True)


def _replace_input() -> int:
    """A copy of the standard input, which is empty from now on: forked processes must not read it."""
    hold = os.dup(0)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    return hold


def prepare() -> None:
    """Prepare this process for forking."""
    # The front process may have blocked or ignored the signals that our children need.
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # A rank that aborts must not leave a core file in the user's folder.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    preload()
    warm_up()
    # No collection before this: it would leave gaps in pages that children then fill, and so copy.
    gc.freeze()
    gc.enable()
    linux.gather_memory()


def _become_zygote(client: Channel, workers: socket.socket, hold: int, others: list[Child]) -> int:
    """Be the zygote of ``client`` until it disconnects."""
    workers.close()
    os.close(hold)
    for other in others:
        other.close()
    # The client ends it, so that its servers can end their ranks even if the process above dies.
    linux.outlive_parent()
    if (hello := client.receive()) is None:
        return 0
    os.environ.clear()
    os.environ.update(hello["environment"])
    (output,) = client.take_descriptors()
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    client.send({"versions": versions, "gpus": gpus()})
    ZygoteLoop(client).run()
    return 0


def _become_importer(client: Channel, request: dict[str, Any]) -> int:
    """Import a trainer, and fork its servers until ``client`` disconnects; not if it cannot be imported, or forked
    after that: then the server that imports it itself says why.
    """
    faulthandler.enable(file=2)
    stacks.answer_requests(2)
    try:
        server.move(request)
        load(request["target"])
    except TrainerError:
        client.send({"imported": False})
        return 0
    is_fit = forking.why_not_fork() is None
    # The client ends it from now on.
    linux.outlive_parent()
    client.send({"imported": is_fit})
    if is_fit:
        gc.freeze()
        ZygoteLoop(client).run()
    return 0


class ZygoteLoop:
    """Forks servers and importers, and waits for their end, on request."""

    def __init__(self, client: Channel) -> None:
        self._client = client
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
        is_importer = request["backend"] is None

        def body() -> int:
            self._client.close()
            for other in self._servers.values():
                other.close()
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.close(output)
            client = Channel(socket.socket(fileno=connection))
            return _become_importer(client, request) if is_importer else server.serve(client, request, unsafe)

        child = Child(body)
        os.close(connection)
        os.close(output)
        self._servers[child.pid] = child
        return child.pid
