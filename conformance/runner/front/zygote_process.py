"""The process behind a zygote's handle: one of our own, or one that was forked from the nursery that workers share."""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import Protocol

from conformance.runner.rank.environment import base_environment
from conformance.runner.system import interpreter
from conformance.runner.system.descriptors import nameless_file
from conformance.runner.system.protocol import Channel

_CLOSE_LIMIT = 20.0
# Workers that may be waiting at once for torch to be imported.
_MOST_WORKERS = 1024


class ZygoteProcess(Protocol):
    """A process that a `Channel` leads to, and the file that it prints to."""

    channel: Channel
    output: int

    @property
    def running(self) -> bool: ...

    def how_it_ended(self) -> str:
        """Wait for the end of a process that has hung up."""

    def close(self) -> None:
        """End it, its servers and their ranks."""


class Started:
    """A fresh Python that runs ``main`` of ``module``, and ends when we hang up."""

    def __init__(self, module: str = "conformance.runner.zygote.zygote", name: str = "zygote") -> None:
        self.output = nameless_file()
        ours, theirs = socket.socketpair()
        with theirs:
            os.set_inheritable(theirs.fileno(), True)
            self._process = subprocess.Popen(
                interpreter.command(module, str(theirs.fileno()), name),
                stdin=subprocess.DEVNULL,
                stdout=self.output,
                stderr=self.output,
                env=base_environment(os.environ),
                pass_fds=[theirs.fileno()],
                # Ctrl-C is for us alone: the processes behind end when the connection does.
                start_new_session=True,
            )
        self.channel = Channel(ours)

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def how_it_ended(self) -> str:
        code = self._process.wait()
        return f"exited {code}" if code >= 0 else f"was killed by signal {-code}"

    def close(self) -> None:
        self.channel.close()
        try:
            self._process.wait(_CLOSE_LIMIT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self.output)


class Joined:
    """A process that the nursery at ``address`` has forked for us, with our environment.

    Raises OSError when nobody is there.
    """

    def __init__(self, address: str) -> None:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(address)
        except OSError:
            connection.close()
            raise
        self.channel = Channel(connection)
        self.output = nameless_file()
        self.channel.send({"environment": base_environment(os.environ)}, [self.output])

    @property
    def running(self) -> bool:
        return not self.channel.hung_up

    def how_it_ended(self) -> str:
        return "ended"

    def close(self) -> None:
        self.channel.hang_up(_CLOSE_LIMIT)
        os.close(self.output)


class Nursery:
    """A process that forks a zygote for each that connects to ``address``. It starts now; nobody waits for it.

    Raises OSError where there can be no such address: the path of the folder for temporary files may be too long.
    """

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="conformance-")
        self.address = str(Path(self._folder.name) / "nursery")
        with socket.socket(socket.AF_UNIX) as listener:
            try:
                listener.bind(self.address)
            except OSError:
                self._folder.cleanup()
                raise
            listener.listen(_MOST_WORKERS)
            self._process = Started("conformance.runner.zygote.nursery", "nursery")
            self._process.channel.send({}, [listener.fileno()])

    def close(self) -> None:
        self._process.close()
        self._folder.cleanup()
