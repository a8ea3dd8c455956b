"""Hosts a case's rendezvous in its own process, which outlives every rank."""

from __future__ import annotations

import signal
import socket
from importlib import import_module
from typing import Any, NoReturn

from conformance.adapter.backends import BACKENDS, Topology


def listen(address: str) -> socket.socket:
    """A listening socket on a free port of ``address``; ranks may connect before the host accepts."""
    listener = socket.socket()
    listener.bind((address, 0))
    listener.listen(128)
    return listener


def why_down(address: str) -> str | None:
    """Why connections to the loopback ``address`` fail, and what to do; None if they work.

    In a new network namespace, loopback is down.
    """
    try:
        with socket.create_server((address, 0)) as listener, socket.create_connection(listener.getsockname(), 10.0):
            return None
    except OSError as error:
        return (
            f"the loopback interface is down: connecting to {address} fails ({error.strerror or error}), so ranks "
            "cannot reach each other; bring it up with: ip link set lo up"
        )


def host(backend: str, listener: socket.socket, topology: Topology) -> NoReturn:
    """Serve the rendezvous of ``backend`` on ``listener`` until this process is killed."""
    if BACKENDS[backend].rendezvous == "horovod":
        _host_horovod(listener, topology)
    _host_store(listener)


def _host_store(listener: socket.socket) -> NoReturn:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    address, port = listener.getsockname()
    descriptor = listener.detach()
    # In torch 2.6 the libuv store cannot take over a listening socket.
    _hold(TCPStore(address, port, is_master=True, wait_for_workers=False, master_listen_fd=descriptor, use_libuv=False))


def _hold(store: object) -> NoReturn:
    """Keep a reference to the store, which serves from its own thread while one exists."""
    while True:
        signal.pause()


def _host_horovod(listener: socket.socket, topology: Topology) -> NoReturn:
    """Serve Horovod's rendezvous. Its own `RendezvousServer` would listen on every interface."""
    http: Any = import_module("horovod.runner.http.http_server")
    hosts: Any = import_module("horovod.runner.common.util.hosts")
    nothing = {"server_bind": lambda server: None, "server_activate": lambda server: None}
    server: Any = type("OneAddressServer", (http.RendezvousHTTPServer,), nothing)(
        listener.getsockname(), http.RendezvousHandler, verbose=0
    )
    server.socket.close()
    server.socket = listener
    slots = ",".join(f"{node}:{topology.hosts.count(node)}" for node in topology.nodes)
    server.init(hosts.get_host_assignments(hosts.parse_hosts(slots), len(topology.hosts)))
    server.serve_forever()
    raise AssertionError("serve_forever returned")


def preload(backend: str) -> None:
    """Import the modules of `host`, once for all forked processes."""
    if BACKENDS[backend].rendezvous == "horovod":
        import_module("horovod.runner.http.http_server")
        import_module("horovod.runner.common.util.hosts")
