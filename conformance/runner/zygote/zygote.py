"""The process that imports torch once and stays single-threaded, from which importers, servers and ranks are forked."""

from __future__ import annotations

import gc
import json
import os
import platform
import resource
import selectors
import shutil
import signal
import socket
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import Any

import torch

from conformance.runner.rank.preparing import preload, remember, warm_up
from conformance.runner.system.child import adopt_orphans, gather_memory, sweep
from conformance.runner.system.protocol import Channel
from conformance.runner.zygote import forking, server
from conformance.runner.zygote.forking import gpus
from conformance.runner.zygote.trainer_importer import Client, Importer, Nursery, shared_environment


def main(listener: str, folder: str) -> None:
    """Run the zygote. ``listener``: the descriptor of the socket for clients, which is in ``folder``.

    The end of the standard input ends this process, which then removes ``folder``.
    """
    hold = _replace_input()
    prepare()
    with socket.socket(fileno=int(listener)) as clients:
        Zygote(clients, hold).run()
    shutil.rmtree(folder, ignore_errors=True)


def _replace_input() -> int:
    """A copy of the standard input, which is replaced by an empty one because forked processes must not read it."""
    hold = os.dup(0)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    return hold


def prepare() -> None:
    """Prepare this process for forking."""
    adopt_orphans()
    # The front process may have blocked or ignored signals that children need.
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # A rank that aborts must not leave a core file in the user's folder.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    preload()
    warm_up()
    remember()
    # No collection before this: it would leave gaps in pages, which children would fill and so copy.
    gc.freeze()
    gc.enable()
    gather_memory()


class Zygote:
    """Forks servers for clients, and one importer per module and environment.

    A message without a trainer is answered with {"versions", "gpus"}, or, if it has descriptors, adds these as
    connections of more clients. Any other message requests a server, from an importer unless it spawns processes that
    import the trainer. Its client gets the messages of `Nursery`, or {"error": how the import ended the process}.
    """

    def __init__(self, listener: socket.socket, hold: int) -> None:
        self._listener = listener
        self._hold = hold
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ, self._accept)
        self._selector.register(hold, selectors.EVENT_READ, self._release)
        self._nursery = Nursery(self._selector)
        self._connections: list[Channel] = []
        self._asking: list[Client] = []
        self._importers: list[Importer] = []
        self._unfit: set[str] = set()
        self._restarted: set[str] = set()
        self._hello = {
            "versions": {"python": platform.python_version(), "torch": torch.__version__},
            "gpus": gpus(),
        }
        self._is_over = False

    def run(self) -> None:
        """Serve until ``hold`` and all servers have ended."""
        while not (self._is_over and self._nursery.is_empty):
            for key, _ in self._selector.select(self._patience()):
                # The handling of one event may have ended the source of another.
                if key in self._selector.get_map().values():
                    key.data()
            # Last, to not give a client the importer that an earlier client has just left.
            while self._asking:
                self._serve(self._asking.pop(0))
            for importer in [*self._importers]:
                if importer.is_importing and importer.deadline <= monotonic():
                    self._refuse(importer, importer.why_late())
            self._nursery.advance()
        for importer in self._importers:
            importer.wait()
        # Only now, because the server of a killed importer serves its client to the end.
        sweep(set())

    def _patience(self) -> float | None:
        until = [importer.deadline - monotonic() for importer in self._importers if importer.is_importing]
        patience = self._nursery.patience()
        return min([max(0.0, seconds) for seconds in until] + ([] if patience is None else [patience]), default=None)

    def _release(self) -> None:
        self._selector.unregister(self._hold)
        self._is_over = True

    def _accept(self) -> None:
        self._connect(self._listener.accept()[0])

    def _connect(self, connection: socket.socket) -> None:
        channel = Channel(connection)
        self._connections.append(channel)
        self._selector.register(channel, selectors.EVENT_READ, partial(self._listen, channel))

    def _listen(self, channel: Channel) -> None:
        is_open = channel.fill()
        if is_open and not channel.holds_message:
            return
        request = (channel.receive() or {}) if is_open else {}
        if is_open and "target" not in request:
            for descriptor in (more := channel.take_descriptors()):
                self._connect(socket.socket(fileno=descriptor))
            if not more:
                with suppress(OSError):
                    channel.send(self._hello)
            return
        self._selector.unregister(channel)
        self._connections.remove(channel)
        if is_open:
            self._asking.append(Client(channel, request, channel.take_descriptors()))
        else:
            channel.close()

    def _serve(self, client: Client) -> None:
        request = client.request
        if request["spawn"] is not None:
            connection, output = client.descriptors
            self._nursery.fork(client.channel, connection, output, partial(self._become_server, request))
            return
        environment = sorted(shared_environment(request["environment"]).items())
        name = json.dumps([*(request[part] for part in ("place", "folder", "path")), environment])
        known = next((one for one in self._importers if one.name == name and one.can_be_forked), None)
        if known is None or name in self._unfit:
            self._import(name, client)
        elif known.is_importing:
            known.waiting.append(client)
        else:
            self._admit(known, client)

    def _import(self, name: str, client: Client) -> None:
        """Start an importer, with this client waiting for it."""
        importer = Importer(name, client, forking.why_not_fork(), self._close_all)
        self._importers.append(importer)
        for source in importer.watched:
            self._selector.register(source, selectors.EVENT_READ, partial(self._hear, importer))
        self._selector.register(importer.output.source, selectors.EVENT_READ, partial(self._read, importer))

    def _read(self, importer: Importer) -> None:
        if not importer.output.read():
            self._selector.unregister(importer.output.source)

    def _hear(self, importer: Importer) -> None:
        """Handle an importer's messages, or its end."""
        is_open = importer.channel.is_readable(0.0) and importer.channel.fill()
        why = importer.why_unreadable
        try:
            while importer in self._importers and importer.channel.holds_message:
                self._take(importer, importer.channel.receive() or {})
        except ValueError:
            is_open = False
        else:
            why = importer.why_ended
        if is_open or importer not in self._importers:
            return
        if not importer.is_importing:
            self._end(importer)
            return
        error = why()
        if importer.was_killed and importer.name not in self._restarted:
            self._restarted.add(importer.name)
            self._end(importer)
            self._asking += importer.waiting
        else:
            self._refuse(importer, error)

    def _take(self, importer: Importer, message: dict[str, Any]) -> None:
        match message:
            case {"imported": bool(can_be_forked)} if importer.is_importing:
                importer.is_importing, importer.can_be_forked = False, can_be_forked
                first, *others = importer.waiting
                importer.waiting = []
                if not can_be_forked:
                    self._unfit.add(importer.name)
                self._admit(importer, first)
                self._asking += others

    def _admit(self, importer: Importer, client: Client) -> None:
        try:
            importer.admit(client)
        except OSError:
            # It was killed meanwhile.
            self._end(importer)
            self._import(importer.name, client)
            return
        if importer.can_be_forked:
            client.close()
        else:
            self._forget(importer)
            client.close_descriptors()
            self._nursery.adopt(importer.release(), client.channel)

    def _refuse(self, importer: Importer, error: str) -> None:
        """End an importer, and report the error to the clients that wait for it."""
        self._end(importer)
        for client in importer.waiting:
            with suppress(OSError):
                client.channel.send({"error": error})
            client.close()

    def _end(self, importer: Importer) -> None:
        self._forget(importer)
        importer.end()

    def _forget(self, importer: Importer) -> None:
        self._importers.remove(importer)
        for source in (*importer.watched, importer.output.source):
            if source in self._selector.get_map():
                self._selector.unregister(source)

    def _close_all(self) -> None:
        """Close, in a child, everything of this process."""
        self._selector.close()
        self._listener.close()
        os.close(self._hold)
        for channel in self._connections:
            channel.close()
        for client in self._asking:
            client.close()
        for importer in self._importers:
            importer.close()
        self._nursery.close()

    def _become_server(self, request: dict[str, Any], connection: Channel) -> int:
        self._close_all()
        os.environ.clear()
        os.environ.update(request["environment"])
        server.move(request)
        return server.serve(connection, request)
