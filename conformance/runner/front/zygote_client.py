"""The front side of the zygote, which starts when first needed, serves all servers and ends with this process."""

from __future__ import annotations

import atexit
import os
import socket
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from conformance.adapter.loading import TrainerError, place_of
from conformance.runner.front.zygote_process import ZygoteProcess
from conformance.runner.outcome import RunnerError, ZygoteLost, describe_status
from conformance.runner.rank.environment import base_environment
from conformance.runner.system import sockets, stacks
from conformance.runner.system.descriptors import last_line, nameless_file, tail
from conformance.runner.system.output import Followed
from conformance.runner.system.protocol import Channel

# Seconds to import torch on a busy machine.
_START_LIMIT = 300.0
_CLOSE_LIMIT = 20.0
#: Seconds that a server has to end.
END_LIMIT = 10.0


@dataclass(frozen=True)
class ServerProcess:
    """A forked server: its process id, and this end of its connection."""

    pid: int
    channel: Channel


class ServerStarter(Protocol):
    """Starts and ends servers, here or on another machine. All methods raise RunnerError, and ZygoteLost where a new
    starter may succeed.
    """

    versions: dict[str, str]
    gpus: dict[str, Any]

    def importer(self, target: str, limit: float) -> ServerStarter:
        """What starts servers of one trainer, with the trainer imported already if possible. ``limit``: seconds for
        the import. Also raises TrainerError.
        """

    def serve(self, target: str, backend: str, *, spawn: str | None) -> ServerProcess:
        """Fork a server for a trainer; its first message says whether the trainer could be imported."""

    def end(self, pid: int, patience: float) -> str:
        """Wait ``patience`` seconds for a server to end, then kill it; the result says how it ended."""

    def last_output(self, pid: int) -> str:
        """The end of what a server printed."""

    def stack(self, pid: int) -> str:
        """Have a server print the stacks of its threads; returns the end of what it printed."""


class Forker:
    """The connection to a process that forks servers."""

    versions: dict[str, str]
    gpus: dict[str, Any]

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._lock = threading.Lock()
        self._outputs: dict[int, Followed] = {}

    @property
    def running(self) -> bool:
        return not self._channel.hung_up

    def importer(self, target: str, limit: float) -> Forker:
        return self

    def serve(self, target: str, backend: str, *, spawn: str | None) -> ServerProcess:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                pid = self.fork(target, backend, theirs, spawn=spawn)
            except BaseException:
                ours.close()
                raise
        return ServerProcess(pid, Channel(ours))

    def fork(self, target: str, backend: str, client: socket.socket, *, spawn: str | None) -> int:
        """Fork a server whose client is at the other end of ``client``; returns its process id."""
        request = {"target": target, "backend": backend, "spawn": spawn, **self._surroundings()}
        output = Followed()
        try:
            pid = int(self._ask(request, client.fileno(), output.sink)["pid"])
        except BaseException:
            output.close()
            raise
        self._outputs[pid] = output
        return pid

    def end(self, pid: int, patience: float) -> str:
        self._forget(pid)
        return describe_status(self._ask({"end": pid, "patience": patience})["status"])

    def last_output(self, pid: int) -> str:
        return self._outputs[pid].text() if pid in self._outputs else ""

    def stack(self, pid: int) -> str:
        stacks.request([stacks.Process(pid, self._outputs[pid].count)])
        return self.last_output(pid)

    def close(self) -> None:
        """End it, its servers and their ranks."""
        self._channel.hang_up(_CLOSE_LIMIT)
        for pid in [*self._outputs]:
            self._forget(pid)

    def _ask(self, request: dict[str, Any], *descriptors: int, timeout: float | None = None) -> dict[str, Any]:
        """Raises ZygoteLost, and RunnerError after ``timeout`` seconds, in which torch should be imported."""
        with self._lock:
            try:
                self._channel.send(request, descriptors)
                answer = self._channel.receive(timeout)
            except TimeoutError as error:
                raise RunnerError(f"importing torch did not end within {timeout:g} s") from error
            except OSError as error:
                raise self._lost() from error
        if answer is None:
            raise self._lost()
        return answer

    def _forget(self, pid: int) -> None:
        """Raises ZygoteLost for a server of the zygote that this one has replaced."""
        if pid not in self._outputs:
            raise ZygoteLost("the process that had imported torch has ended")
        self._outputs.pop(pid).close()

    def _surroundings(self) -> dict[str, Any]:
        """Where servers import the trainer."""
        return {}

    def _lost(self) -> ZygoteLost:
        """The error for a process that has ended."""
        return ZygoteLost("the process that had imported the trainer has ended")


def _connect(connection: socket.socket, address: str) -> None:
    """Raises OSError when nothing listens at ``address``."""
    with sockets.short_name(address) as name:
        connection.connect(name)


class ZygoteClient(Forker):
    """The connection to a zygote, forked from a `ZygoteProcess`: the `ServerStarter` of this machine."""

    def __init__(self, address: str | None = None) -> None:
        """``address``: of another's `ZygoteProcess`; by default one is started, which ends with this process.

        Raises RunnerError when it ends at once, OSError when nothing listens at ``address``.
        """
        connection = socket.socket(socket.AF_UNIX)
        super().__init__(Channel(connection))
        self._importing = threading.Lock()
        self._importers: dict[str, _Importer] = {}
        self._process = None
        self._is_closed = self._has_lost_process = False
        self._environment = base_environment(os.environ)
        if address is None:
            self._process = ZygoteProcess()
            address = self._process.address
        self._address = address
        self.owner = os.getpid()
        self._output = nameless_file()
        try:
            _connect(connection, address)
            hello = self._ask({"environment": self._environment}, self._output, timeout=_START_LIMIT)
            self.versions = hello["versions"]
            self.gpus = hello["gpus"]
        except BaseException:
            self.close()
            raise

    @property
    def running(self) -> bool:
        return not self._has_lost_process and super().running

    def importer(self, target: str, limit: float) -> Forker:
        place = place_of(target)
        with self._importing:
            known = self._importers.pop(place, None)
            if known is None or not known.running:
                if known is not None:
                    known.close()
                known = self._import(place, limit)
            if known is None:
                # Servers import the trainer themselves.
                return self
            self._importers[place] = known
            return known

    def close(self) -> None:
        for importer in self._importers.values():
            importer.close()
        self._is_closed = True
        super().close()
        os.close(self._output)
        if self._process is not None:
            self._process.close()

    def _import(self, place: str, limit: float) -> _Importer | None:
        """None if nothing can be forked after the import. Raises TrainerError, RunnerError."""
        connection = socket.socket(socket.AF_UNIX)
        importer = _Importer(Channel(connection), self)
        answer: dict[str, Any] = {}
        try:
            _connect(connection, self._address)
            request = {"place": place, "limit": limit, "environment": self._environment, **self._surroundings()}
            answer = importer._ask(request)
        except (OSError, ZygoteLost) as error:
            # Zygotes that run outlive it, but there will be no new ones.
            self._has_lost_process = True
            raise self._lost() from error
        finally:
            if not answer.get("imported"):
                # Nothing answers a goodbye.
                connection.close()
        if "error" in answer:
            raise TrainerError(answer["error"])
        return importer if answer["imported"] else None

    def _surroundings(self) -> dict[str, Any]:
        return {"folder": os.getcwd(), "path": [str(folder) for folder in sys.path]}

    def _lost(self) -> ZygoteLost:
        if self._is_closed:
            return ZygoteLost("the process that had imported torch has ended")
        words = None if self._process is None else self._process.how_it_ended()
        words = words or f"ended; it last printed: {last_line(tail(self._output)) or 'nothing'}"
        return ZygoteLost(f"the process that imports torch {words}")


class _Importer(Forker):
    """The connection to a zygote that has imported a trainer; it ends with its last server."""

    def __init__(self, channel: Channel, zygote: ZygoteClient) -> None:
        super().__init__(channel)
        self.versions, self.gpus = zygote.versions, zygote.gpus
        self._is_closed = False

    @property
    def running(self) -> bool:
        return not self._is_closed and super().running

    def end(self, pid: int, patience: float) -> str:
        how = super().end(pid, patience)
        if not self._outputs:
            self.close()
        return how

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            super().close()


def greeting(starter: ServerStarter, server: ServerProcess, target: str, limit: float) -> dict[str, Any]:
    """The first message of a process that imports a trainer, which has ``limit`` seconds for it.

    Raises TrainerError, RunnerError; then the process has ended.
    """
    try:
        hello = server.channel.receive(limit)
    except BaseException as error:
        where = stacks.line_of_trainer(starter.stack(server.pid)) if isinstance(error, TimeoutError) else None
        server.channel.close()
        with suppress(RunnerError):
            starter.end(server.pid, 0.0)
        if isinstance(error, TimeoutError):
            raise TrainerError(f"{target}: importing it did not end within {limit:g} s{_at(where)}") from error
        raise
    if hello is None:
        printed = starter.last_output(server.pid)
        server.channel.close()
        how = starter.end(server.pid, END_LIMIT)
        words = last_line(printed)
        why = _at(stacks.line_of_trainer(printed)) or (f"; it last printed: {words}" if words else "")
        raise TrainerError(f"{target}: importing it ended the process ({how}){why}")
    return hello


def _at(where: str | None) -> str:
    return f" at {where}" if where else ""


class Shared:
    """At most one zygote for this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._zygote: ZygoteClient | None = None
        self._address: str | None = None

    def join(self, address: str) -> None:
        """From now on, use zygotes forked by another's `ZygoteProcess` at this address."""
        self._address = address

    def get(self) -> ZygoteClient:
        """The running zygote, started if there is none. Raises RunnerError."""
        with self._lock:
            if self._zygote is not None and not (self._is_ours() and self._zygote.running):
                self._drop()
            if self._zygote is None and self._address is not None:
                # If joining fails, a process of our own succeeds or reports why.
                with suppress(OSError, RunnerError):
                    self._zygote = ZygoteClient(self._address)
            if self._zygote is None:
                self._zygote = ZygoteClient()
            return self._zygote

    def close(self) -> None:
        """End the zygote, if this process has started one; `get` starts another."""
        with self._lock:
            self._drop()

    def _is_ours(self) -> bool:
        """False in a process forked from the zygote's owner, which must not touch it."""
        return self._zygote is not None and self._zygote.owner == os.getpid()

    def _drop(self) -> None:
        if self._zygote is not None and self._is_ours():
            self._zygote.close()
        self._zygote = None


shared = Shared()
atexit.register(shared.close)
