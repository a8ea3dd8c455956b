"""Starts the process that imports torch, which several workers may share."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from conformance.runner.outcome import signal_name
from conformance.runner.rank.environment import base_environment
from conformance.runner.system import interpreter
from conformance.runner.system.descriptors import last_line, nameless_file, tail
from conformance.runner.system.protocol import Channel

_CLOSE_LIMIT = 20.0
# Seconds from losing its connections until its end is known.
_EXIT_LIMIT = 1.0
# Workers that may wait at the same time for torch to be imported.
_MOST_WORKERS = 1024


class ZygoteProcess:
    """A fresh Python that imports torch, and forks servers for each `ZygoteClient` that connects to ``address``.

    It starts in the background, and ends when it is closed or when this process ends. Its last act is to remove the
    folder of its address, see `temporary`.
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
                interpreter.command("conformance.runner.zygote.zygote", str(listener.fileno()), str(folder)),
                # It ends when its standard input does.
                stdin=subprocess.PIPE,
                stdout=self._output,
                stderr=self._output,
                env={**base_environment(os.environ), **temporary(self.address)},
                pass_fds=[listener.fileno()],
                # Only we handle Ctrl-C.
                start_new_session=True,
            )

    def how_it_ended(self) -> str | None:
        """How it ended, and what it printed last; None if it has not ended."""
        try:
            code = self._process.wait(_EXIT_LIMIT)
        except subprocess.TimeoutExpired:
            return None
        how = f"exited {code}" if code >= 0 else f"was killed by {signal_name(-code)}"
        return f"{how}; it last printed: {last_line(tail(self._output)) or 'nothing'}"

    def close(self) -> None:
        """End it once its servers have ended, and their ranks with them."""
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
    """The variable that has a process put its temporary files next to this address: they go when the zygote ends."""
    return {"TMPDIR": str(Path(address).parent)}


def connect(address: str) -> Channel:
    """A connection to the process with this address. Raises OSError when it does not listen."""
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

    An address holds about a hundred bytes: too few for the paths of some temporary folders.
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
