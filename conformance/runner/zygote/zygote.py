"""The process that imports torch once and stays single-threaded. Each client that connects gets a zygote: a fork of it,
or of an importer, which is another fork of it.
"""

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
from typing import Any, NamedTuple

import torch

from conformance.runner.rank.loading import imported_apart
from conformance.runner.rank.preload import preload, warm_up
from conformance.runner.system import linux
from conformance.runner.system.child import Child
from conformance.runner.system.gpus import gpus
from conformance.runner.system.protocol import Channel
from conformance.runner.zygote import loop
from conformance.runner.zygote.importer import END_LIMIT, Importer, shared_environment


def main(listener: str, folder: str) -> None:
    """``listener``: the descriptor of the socket that clients connect to, which is in ``folder``.

    The end of the standard input ends this process; ``folder`` is removed then.
    """
    hold = _replace_input()
    prepare()
    with socket.socket(fileno=int(listener)) as clients:
        Zygote(clients, hold).run()
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


class _Client(NamedTuple):
    """``request``: {"environment"}, and if it wants trainers imported, {"place", "folder", "path", "limit"}."""

    channel: Channel
    request: dict[str, Any]


class _Import(NamedTuple):
    """An import that has not ended, who waits for it, and for how long: seconds, and until when."""

    waiting: list[_Client]
    limit: float
    deadline: float


class Zygote:
    """Forks zygotes for clients, and importers, of which there is one for each module and surroundings.

    A client that names no module is greeted with {"versions", "gpus"}; any other with {"imported": True}, {"imported":
    False} if zygotes cannot be forked after the import, or {"error": how the import ended the process}.
    """

    def __init__(self, listener: socket.socket, hold: int) -> None:
        self._listener = listener
        self._hold = hold
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ, self._accept)
        self._selector.register(hold, selectors.EVENT_READ, self._release)
        self._silent: list[Channel] = []
        self._asking: list[_Client] = []
        self._zygotes: list[Child] = []
        self._importers: dict[str, Importer] = {}
        self._imports: dict[str, _Import] = {}
        self._unfit: set[str] = set()
        self._begun_again: set[str] = set()
        self._is_over = False

    def run(self) -> None:
        """Until ``hold`` ends."""
        while not self._is_over:
            for key, _ in self._selector.select(self._patience()):
                # What one event does may end what another one is of.
                if key in self._selector.get_map().values():
                    key.data()
            # Last, so that a client finds no importer that the client before it has left.
            while self._asking:
                self._serve(self._asking.pop(0))
            for name in [name for name, pending in self._imports.items() if pending.deadline <= monotonic()]:
                self._refuse(name, self._importers[name].why_late(self._imports[name].limit))
            self._zygotes = [zygote for zygote in self._zygotes if zygote.poll() is None]
        for name in [*self._importers]:
            self._end(name, 0.0 if name in self._imports else None)
        for zygote in self._zygotes:
            zygote.end(None)

    def _patience(self) -> float | None:
        now = monotonic()
        return min((max(0.0, pending.deadline - now) for pending in self._imports.values()), default=None)

    def _release(self) -> None:
        self._is_over = True

    def _accept(self) -> None:
        channel = Channel(self._listener.accept()[0])
        self._silent.append(channel)
        self._selector.register(channel, selectors.EVENT_READ, partial(self._listen, channel))

    def _listen(self, channel: Channel) -> None:
        is_open = channel.fill()
        if is_open and not channel.holds_message:
            return
        self._selector.unregister(channel)
        self._silent.remove(channel)
        if is_open:
            self._asking.append(_Client(channel, channel.receive() or {}))
        else:
            channel.close()

    def _serve(self, client: _Client) -> None:
        if "place" not in client.request:
            (output,) = client.channel.take_descriptors()
            self._zygotes.append(Child(partial(self._become_zygote, client, output)))
            os.close(output)
            client.channel.close()
            return
        environment = shared_environment(client.request["environment"])
        place = [client.request[name] for name in ("place", "folder", "path")]
        name = json.dumps([*place, sorted(environment.items())])
        if name in self._unfit:
            _tell(client, {"imported": False})
        elif name in self._imports:
            self._imports[name].waiting.append(client)
        elif name in self._importers:
            self._admit(name, client)
        else:
            self._import(name, client)

    def _import(self, name: str, client: _Client) -> None:
        """Start an importer, for which this client waits."""
        limit = float(client.request["limit"])
        self._imports[name] = _Import([client], limit, monotonic() + limit)
        importer = self._importers[name] = Importer(client.request, self._close_all)
        for source in importer.watched:
            self._selector.register(source, selectors.EVENT_READ, partial(self._hear, name))
        self._selector.register(importer.output.source, selectors.EVENT_READ, partial(self._read, importer))

    def _read(self, importer: Importer) -> None:
        if not importer.output.read():
            self._selector.unregister(importer.output.source)

    def _hear(self, name: str) -> None:
        """Take what an importer says, or that it has ended."""
        importer = self._importers[name]
        is_open = importer.channel.is_readable(0.0) and importer.channel.fill()
        why = importer.why_unreadable
        try:
            while self._importers.get(name) is importer and importer.channel.holds_message:
                self._take(name, importer.channel.receive() or {})
        except ValueError:
            is_open = False
        else:
            why = importer.why_ended
        if is_open or self._importers.get(name) is not importer:
            return
        if name not in self._imports:
            self._end(name)
            return
        error = why()
        if importer.was_killed and name not in self._begun_again:
            self._begun_again.add(name)
            waiting = self._imports.pop(name).waiting
            self._end(name)
            for client in waiting:
                self._serve(client)
        else:
            self._refuse(name, error)

    def _take(self, name: str, message: dict[str, Any]) -> None:
        match message:
            case {"imported": True} if name in self._imports:
                for client in self._imports.pop(name).waiting:
                    self._admit(name, client)
            case {"imported": False} if name in self._imports:
                self._unfit.add(name)
                self._refuse(name)
            case {"idle": admitted} if name not in self._imports and self._importers[name].is_idle(admitted):
                self._end(name)

    def _admit(self, name: str, client: _Client) -> None:
        try:
            self._importers[name].admit(client.channel, client.request["environment"])
        except OSError:
            # It has been killed since.
            self._end(name)
            self._import(name, client)
        else:
            client.channel.close()

    def _refuse(self, name: str, error: str | None = None) -> None:
        """Let no client wait any longer for this importer."""
        for client in self._imports.pop(name).waiting:
            _tell(client, {"imported": False} if error is None else {"error": error})
        self._end(name)

    def _end(self, name: str, patience: float | None = END_LIMIT) -> None:
        importer = self._importers.pop(name)
        for source in (*importer.watched, importer.output.source):
            if source in self._selector.get_map():
                self._selector.unregister(source)
        importer.end(patience)

    def _close_all(self) -> None:
        """In a child: close everything that belongs to this process."""
        self._selector.close()
        self._listener.close()
        os.close(self._hold)
        for channel in self._silent:
            channel.close()
        for waiting in (self._asking, *(pending.waiting for pending in self._imports.values())):
            for client in waiting:
                client.channel.close()
        for zygote in self._zygotes:
            zygote.close()
        for importer in self._importers.values():
            importer.close()

    def _become_zygote(self, client: _Client, output: int) -> int:
        self._close_all()
        os.environ.clear()
        os.environ.update(client.request["environment"])
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
        versions = {"python": platform.python_version(), "torch": torch.__version__}
        return loop.serve(client.channel, {"versions": versions, "gpus": gpus()}, imported_apart)


def _tell(client: _Client, answer: dict[str, Any]) -> None:
    """Answer a client that gets no zygote."""
    with suppress(OSError):
        client.channel.send(answer)
    client.channel.close()
