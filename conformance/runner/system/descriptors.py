"""Raw file descriptors: nameless files, the descriptors of a case, and the output of processes."""

from __future__ import annotations

import fcntl
import os
import select
import tempfile
import threading
from collections.abc import Container
from dataclasses import dataclass

# Imported by name, before a trainer can replace it.
from os import fstat


def nameless_file() -> int:
    """The descriptor of an empty file for reading and appending, which disappears when closed."""
    try:
        descriptor, path = tempfile.mkstemp(prefix="conformance-")
        os.unlink(path)
    except (FileNotFoundError, PermissionError):
        # A trainer may have removed the folder of temporary files, or its permissions.
        descriptor = os.memfd_create("conformance")
    fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_APPEND)
    return descriptor


def tail(file: int, size: int = 20_000) -> str:
    """The last ``size`` bytes of a file, as text."""
    start = max(0, os.fstat(file).st_size - size)
    return os.pread(file, size, start).decode(errors="replace")


def print_to(descriptor: int) -> None:
    """Redirect this process's standard output and error to ``descriptor``, which is closed."""
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


@dataclass(frozen=True)
class Known:
    """A descriptor together with the identity of its file, pipe or socket.

    A trainer may close a descriptor that it has not opened, and then reuse the number for its own file.
    """

    number: int
    device: int
    inode: int

    @classmethod
    def of(cls, number: int) -> Known:
        """``number`` with its current file. Raises OSError."""
        found = fstat(number)
        return cls(number, found.st_dev, found.st_ino)

    @property
    def is_intact(self) -> bool:
        """Whether the number still belongs to the same file."""
        return self.is_intact_in("self")

    def is_intact_in(self, process: int | str) -> bool:
        """`is_intact` for another process, which inherited the descriptor; True if that is unknowable."""
        try:
            found = fstat(self.number) if process == "self" else os.stat(f"/proc/{process}/fd/{self.number}")
        except OSError:
            return process != "self" and not os.path.isdir("/proc/self/fd")
        return (found.st_dev, found.st_ino) == (self.device, self.inode)


def last_line(text: str) -> str:
    """The last line that is not blank; empty if there is none."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


class Descriptors:
    """Owns raw descriptors: a forked child can close those it does not need. Closes each one only once."""

    def __init__(self) -> None:
        self._open: set[int] = set()

    def pipe(self) -> tuple[int, int]:
        """A pipe: (read end, write end)."""
        ends = os.pipe()
        self._open.update(ends)
        return ends

    def file(self) -> int:
        """A `nameless_file`."""
        descriptor = nameless_file()
        self._open.add(descriptor)
        return descriptor

    def close(self, descriptor: int) -> None:
        self._open.remove(descriptor)
        os.close(descriptor)

    def close_all_but(self, kept: Container[int]) -> None:
        for descriptor in [descriptor for descriptor in self._open if descriptor not in kept]:
            self.close(descriptor)


#: The last bytes of an output that are kept.
KEPT = 20_000
_CHUNK = 1 << 16
# Chunks, more than a full pipe has.
_REST = 32


class Output:
    """The end of the output in the pipe ``source``; a file would grow as long as a process prints.

    Attributes:
        count: bytes read until now.
    """

    def __init__(self, source: int) -> None:
        self.source = source
        self.count = 0
        os.set_blocking(source, False)
        self._end = b""

    def read(self) -> bool:
        """Read what has arrived; False when nothing more will come."""
        try:
            data = os.read(self.source, _CHUNK)
        except BlockingIOError:
            return True
        self.count += len(data)
        self._end = (self._end + data)[-KEPT:]
        return bool(data)

    def text(self) -> str:
        """The last `KEPT` bytes of the output until now."""
        # Not until the pipe is empty, because a process started elsewhere may print forever.
        for _ in range(_REST):
            self.read()
        return self._end.decode(errors="replace")


class Followed:
    """An `Output` that a thread reads, for owners that wait for other things.

    Attributes:
        sink: the write end. It stays open here, to keep the pipe open.
    """

    def __init__(self) -> None:
        source, self.sink = os.pipe()
        self._woken, self._wake = os.pipe()
        self._output = Output(source)
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._follow, name="conformance-output", daemon=True)
        self._thread.start()

    def text(self) -> str:
        """The last `KEPT` bytes of the output until now."""
        with self._lock:
            return self._output.text()

    def close(self) -> None:
        os.close(self._wake)
        self._thread.join()
        for descriptor in (self._woken, self._output.source, self.sink):
            os.close(descriptor)

    def _follow(self) -> None:
        poll = select.poll()
        poll.register(self._output.source, select.POLLIN)
        poll.register(self._woken)
        while all(ready != self._woken for ready, _ in poll.poll()):
            with self._lock:
                self._output.read()
