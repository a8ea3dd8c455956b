"""Raw file descriptors: files without a name, and the descriptors of one case."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Container
from dataclasses import dataclass

# As it was before a trainer could replace it.
from os import fstat


def nameless_file() -> int:
    """The descriptor of an empty file for reading and appending, which disappears when it is closed."""
    try:
        descriptor, path = tempfile.mkstemp(prefix="conformance-")
        os.unlink(path)
    except (FileNotFoundError, PermissionError):
        # A trainer has removed the folder of temporary files, or its permissions.
        descriptor = os.memfd_create("conformance")
    fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_APPEND)
    return descriptor


def tail(file: int, size: int = 20_000) -> str:
    """The last ``size`` bytes of a file, as text."""
    start = max(0, os.fstat(file).st_size - size)
    return os.pread(file, size, start).decode(errors="replace")


def print_to(descriptor: int) -> None:
    """Have this process print there, and only there."""
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


@dataclass(frozen=True)
class Known:
    """A descriptor and the file, pipe or socket that it is of.

    A trainer may close descriptors that it has not opened, and then the number may become that of a file of its own.
    """

    number: int
    device: int
    inode: int

    @classmethod
    def of(cls, number: int) -> Known:
        """``number`` as it is now. Raises OSError."""
        found = fstat(number)
        return cls(number, found.st_dev, found.st_ino)

    @property
    def is_intact(self) -> bool:
        """Whether the number is still of the same file."""
        return self.is_intact_in("self")

    def is_intact_in(self, process: int | str) -> bool:
        """The same for another process, which got the descriptor from this one; True where nobody can know."""
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
    """Owns raw descriptors: a forked child closes those that are not its own, and none is closed twice."""

    def __init__(self) -> None:
        self._open: set[int] = set()

    def pipe(self) -> tuple[int, int]:
        """(read end, write end)"""
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
