"""The process that holds a case's rendezvous, on loopback, so that it outlives any rank."""

from __future__ import annotations

import signal
import socket
from importlib import import_module
from typing import Any, NoReturn

from conformance.runner.environment import LOOPBACK


def listen() -> socket.socket:
    """A listening socket on a free loopback port; ranks may connect before anybody accepts."""
    listener = socket.socket()
    listener.bind((LOOPBACK, 0))
    listener.listen(128)
    return listener


def keep(backend: str, listener: socket.socket, world_size: int) -> NoReturn:
    """Serve the rendezvous of ``backend`` on ``listener`` until this process is killed."""
    if backend == "horovod":
        _keep_horovod(listener, world_size)
    _keep_store(listener)


def _keep_store(listener: socket.socket) -> NoReturn:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    port = listener.getsockname()[1]
    _hold(TCPStore(LOOPBACK, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()))


def _hold(store: object) -> NoReturn:
    """A store serves from a thread of its own for as long as it is referred to."""
    while True:
        signal.pause()


def _keep_horovod(listener: socket.socket, world_size: int) -> NoReturn:
    """Horovod's own `RendezvousServer` listens on every interface, so its parts are put together here."""
    http: Any = import_module("horovod.runner.http.http_server")
    hosts: Any = import_module("horovod.runner.common.util.hosts")
    nothing = {"server_bind": lambda server: None, "server_activate": lambda server: None}
    server: Any = type("LoopbackServer", (http.RendezvousHTTPServer,), nothing)(
        listener.getsockname(), http.RendezvousHandler, verbose=0
    )
    server.socket.close()
    server.socket = listener
    server.init(hosts.get_host_assignments(hosts.parse_hosts(f"localhost:{world_size}"), world_size))
    server.serve_forever()
    raise AssertionError("serve_forever returned")


def preload(backend: str) -> None:
    """Import what `keep` needs, so that a forked keeper has it."""
    if backend == "horovod":
        import_module("horovod.runner.http.http_server")
        import_module("horovod.runner.common.util.hosts")
