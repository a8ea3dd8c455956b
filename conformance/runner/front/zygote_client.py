"""The front side of the zygote, which starts on first use, forks all servers and ends with this process."""

from __future__ import annotations

import atexit
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from conformance.adapter.loading import TrainerError, place_of
from conformance.runner.outcome import ImporterLost, RunnerError, ZygoteLost, describe_status, signal_name
from conformance.runner.rank.environment import base_environment
from conformance.runner.system.child import fresh_python
from conformance.runner.system.descriptors import Followed, last_line, nameless_file, tail
from conformance.runner.system.protocol import Channel

_CLOSE_LIMIT = 20.0
# Seconds to wait for the end of a process after its connection is lost.
_EXIT_LIMIT = 1.0
# Workers that may wait at the same time for the import of torch.
_MOST_WORKERS = 1024


class ZygoteProcess:
    """A fresh Python that imports torch, and forks servers for each `ZygoteClient` that connects to ``address``.

    It starts in the background, and ends when it is closed or this process ends. Last, it removes the folder of its
    address, see `temporary`.
    """

    def __init__(self) -> None:
        folder = Path(tempfile.mkdtemp(prefix="conformance-"))
        self.address = str(folder / "zygote")
        self._output = nameless_file()
        with socket.socket(socket.AF_UNIX) as listener:
            with _short_name(self.address) as name:
                listener.bind(name)
            listener.listen(_MOST_WORKERS)
            self._process = subprocess.Popen(
                fresh_python("conformance.runner.zygote.zygote", str(listener.fileno()), str(folder)),
                # The end of its standard input ends it.
                stdin=subprocess.PIPE,
                stdout=self._output,
                stderr=self._output,
                env={**base_environment(os.environ), **temporary(self.address)},
                pass_fds=[listener.fileno()],
                # Only this process handles Ctrl-C.
                start_new_session=True,
            )

    def how_it_ended(self) -> str | None:
        """How it ended, and its last printed line; None if it has not ended."""
        try:
            code = self._process.wait(_EXIT_LIMIT)
        except subprocess.TimeoutExpired:
            return None
        how = f"exited {code}" if code >= 0 else f"was killed by {signal_name(-code)}"
        return f"{how}; it last printed: {last_line(tail(self._output)) or 'nothing'}"

    def close(self) -> None:
        """End it, after its servers and their ranks have ended."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(_CLOSE_LIMIT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._output)
        # It removes its folder itself, unless it died.
        shutil.rmtree(Path(self.address).parent, ignore_errors=True)


def temporary(address: str) -> dict[str, str]:
    """The environment variable that puts a process's temporary files next to this address, removed with the zygote."""
    return {"TMPDIR": str(Path(address).parent)}


def connect(address: str) -> Channel:
    """A connection to the process at this address. Raises OSError if it does not listen."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        with _short_name(address) as name:
            connection.connect(name)
    except OSError:
        connection.close()
        raise
    return Channel(connection)


@contextmanager
def _short_name(path: str) -> Iterator[str]:
    """Another name for ``path``, short enough for a socket's address, if the system has one.

    An address has about a hundred bytes, too few for the paths of some temporary folders.
    """
    links = Path("/proc/self/fd")
    if not links.is_dir():
        yield path
        return
    folder = os.open(Path(path).parent, os.O_RDONLY)
    try:
        yield str(links / str(folder) / Path(path).name)
    finally:
        os.close(folder)


# Seconds to import torch on a busy machine.
_START_LIMIT = 300.0


class ServerProcess(Protocol):
    """A forked server, here or on another machine."""

    def end(self, patience: float) -> str:
        """Wait ``patience`` seconds for its end, then kill it; returns how it ended. Raises RunnerError."""

    def last_output(self) -> str:
        """The end of its output."""


class Serving(NamedTuple):
    """A server, and this end of its connection."""

    process: ServerProcess
    channel: Channel


class ServerStarter(Protocol):
    """Starts servers, here or on another machine."""

    versions: dict[str, str]
    gpus: dict[str, Any]

    def serve(self, target: str, backend: str, *, spawn: str | None, limit: float) -> Serving:
        """Fork a server from a process that has imported its trainer, in at most ``limit`` seconds. If the server is to
        ``spawn`` the processes that import it, fork from one that has not. The first message tells if it is ready.

        Raises TrainerError; RunnerError, and ZygoteLost if another starter may succeed.
        """


class ForkedServer:
    """A server on this machine."""

    def __init__(self, pid: int, control: Channel, output: Followed) -> None:
        """``control``: the connection to its parent, which reports how it ended."""
        self.pid = pid
        self._control = control
        self._output = output

    def end(self, patience: float) -> str:
        try:
            try:
                answer = self._control.receive(patience)
            except TimeoutError:
                self._control.send({"end": True})
                answer = self._control.receive()
        except OSError:
            answer = None
        finally:
            self._control.close()
            self._output.close()
        if answer is None:
            raise ZygoteLost("the process that imported the trainer died")
        return describe_status(answer["status"])

    def last_output(self) -> str:
        return self._output.text()


class ZygoteClient:
    """A connection to a `ZygoteProcess`: the `ServerStarter` of this machine."""

    def __init__(self, address: str | None = None) -> None:
        """``address``: that of an existing process; by default one is started, which ends with this process.

        Raises RunnerError if torch cannot be imported, OSError if nothing listens at ``address``.
        """
        self._process = None
        if address is None:
            self._process = ZygoteProcess()
            address = self._process.address
        self._environment = {**base_environment(os.environ), **temporary(address)}
        self.owner = os.getpid()
        try:
            self._channel = connect(address)
        except OSError:
            if self._process is not None:
                self._process.close()
            raise
        try:
            hello = self._ask(self._channel, {})
        except BaseException:
            self.close()
            raise
        self.versions, self.gpus = hello["versions"], hello["gpus"]

    @property
    def running(self) -> bool:
        return not self._channel.hung_up

    def serve(self, target: str, backend: str, *, spawn: str | None, limit: float) -> Serving:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                process = self.fork(target, backend, theirs, spawn=spawn, limit=limit)
            except BaseException:
                ours.close()
                raise
        return Serving(process, Channel(ours))

    def fork(
        self, target: str, backend: str, client: socket.socket, *, spawn: str | None, limit: float
    ) -> ForkedServer:
        """`serve`, for a client at the other end of ``client``."""
        request = {
            "target": target,
            "place": place_of(target),
            "backend": backend,
            "spawn": spawn,
            "limit": limit,
            "environment": self._environment,
            "folder": os.getcwd(),
            "path": [str(folder) for folder in sys.path],
        }
        # A new connection by address could fail, because a trainer may remove the folder of temporary files.
        ours, theirs = socket.socketpair()
        control = Channel(ours)
        with theirs:
            try:
                self._channel.send({}, [theirs.fileno()])
            except OSError as error:
                control.close()
                raise self._lost() from error
        output = Followed()
        try:
            answer = self._ask(control, request, client.fileno(), output.sink)
            if "error" in answer:
                raise TrainerError(answer["error"])
        except BaseException:
            control.close()
            output.close()
            raise
        return ForkedServer(answer["pid"], control, output)

    def close(self) -> None:
        """Close the connection. If this process started the zygote, end it with its servers and ranks."""
        self._channel.close()
        if self._process is not None:
            self._process.close()

    def _ask(self, channel: Channel, request: dict[str, Any], *descriptors: int) -> dict[str, Any]:
        """Send a request; returns the answer. Raises RunnerError."""
        # The other end enforces the limit of a trainer's import.
        limit = _START_LIMIT + request.get("limit", 0.0)
        try:
            channel.send(request, descriptors)
            answer = channel.receive(limit)
        except TimeoutError as error:
            raise RunnerError(f"importing torch took longer than {limit:g} s") from error
        except OSError as error:
            raise self._lost() from error
        if answer is None:
            raise self._lost()
        return answer

    def _lost(self) -> ZygoteLost:
        self._channel.is_readable(_EXIT_LIMIT)
        if self.running:
            return ImporterLost("the process that imported the trainer died")
        how = None if self._process is None else self._process.how_it_ended()
        return ZygoteLost(f"the process that imports torch {how or 'died'}")


class Shared:
    """At most one zygote for this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._zygote: ZygoteClient | None = None
        self._address: str | None = None

    def join(self, address: str) -> None:
        """Use an existing `ZygoteProcess` at this address from now on."""
        self._address = address

    def get(self) -> ZygoteClient:
        """The running zygote, started if there is none. Raises RunnerError."""
        with self._lock:
            if self._zygote is not None and not (self._is_ours() and self._zygote.running):
                self._drop()
            if self._zygote is None and self._address is not None:
                # If joining fails, an own process succeeds or reports why.
                with suppress(OSError, RunnerError):
                    self._zygote = ZygoteClient(self._address)
            if self._zygote is None:
                self._zygote = ZygoteClient()
            return self._zygote

    def close(self) -> None:
        """End the zygote, if this process has started one. `get` starts a new one."""
        with self._lock:
            self._drop()

    def _is_ours(self) -> bool:
        """Whether this process owns the zygote; False in a process forked from its owner, which must not touch it."""
        return self._zygote is not None and self._zygote.owner == os.getpid()

    def _drop(self) -> None:
        if self._zygote is not None and self._is_ours():
            self._zygote.close()
        self._zygote = None


shared = Shared()
atexit.register(shared.close)
