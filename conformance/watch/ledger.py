"""The ledger of a watch: a file of fixed size that every process maps, and in which it counts its records.

A stream of records can be cut short by a full disk, a limit, a closed descriptor or a signal. Mapped memory cannot, so
the judge compares each stream with its account. The recorder counts records before it writes them.

This file imports little, and only from the standard library: `inject/sitecustomize.py` loads it by path in each
process.
"""

from __future__ import annotations

import ctypes
import os
import struct
import weakref

# Bound before a script can patch them.
from errno import EIO
from fcntl import LOCK_EX, LOCK_UN, flock
from mmap import MAP_SHARED, PROT_READ, PROT_WRITE
from os import O_CLOEXEC, O_RDONLY, close, fstat, getpid, read, stat, urandom
from os import open as open_file
from struct import pack_into
from typing import NamedTuple

NAME = "ledger"
_USED, _IMPORTED, _UNLISTED, _OVER = (8 * number for number in range(4))
"""Places of the number of used accounts, and of flags: torch was imported, an account was missing, the watch ended."""
_ACCOUNT = struct.Struct("<qqqqq16s192s")
"""pid, start, state, number of records and steps, random part of the name, reason why recording failed."""
_STATE, _RECORDS, _STEPS, _REASON = 16, 24, 32, 56
_SIZE, _NUMBER = 256, struct.Struct("<q")
_MOST, _FEWEST = 4096, 8
"""Limits of the number of accounts; fewer fit on a small disk."""
RUNNING, ENDED, FAILED = range(3)


_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


class Account(NamedTuple):
    """The state of one process's stream. A process that calls `exec` has two.

    pid: as the process sees itself. start: of the process, in clock ticks since boot; 0 if unknown. records, steps:
    numbers written or about to be written. reason: why recording stopped; "" if it did not.
    """

    pid: int
    start: int
    state: int
    records: int
    steps: int
    stem: str
    reason: str


class Ledger:
    """Maps the ledger in a folder. Every operation raises OSError if the file was truncated, because access to mapped
    memory behind the end of a file kills the process.

    keeps: the descriptor stays open, so the file cannot vanish.
    """

    def __init__(self, folder: str | os.PathLike[str], *, keeps: bool = False) -> None:
        self._path = os.path.join(folder, NAME)
        self._file: int | str = self._path
        descriptor = open_file(self._path, os.O_RDWR | os.O_CLOEXEC)
        try:
            self._memory = _mapped(descriptor, fstat(descriptor).st_size)
            if keeps:
                self._file = os.dup(descriptor)
                weakref.finalize(self, close, self._file)
        finally:
            close(descriptor)
        weakref.finalize(self, _libc.munmap, ctypes.addressof(self._memory), len(self._memory)).atexit = False

    @classmethod
    def made(cls, folder: str | os.PathLike[str], *, keeps: bool = False) -> Ledger:
        """Creates a ledger with as many accounts as fit on the disk. Raises OSError if too few fit."""
        descriptor = open_file(os.path.join(folder, NAME), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            accounts = _MOST
            while True:
                try:
                    os.posix_fallocate(descriptor, 0, (1 + accounts) * _SIZE)
                    break
                except OSError:
                    if accounts == _FEWEST:
                        raise
                    accounts //= 2
            os.ftruncate(descriptor, (1 + accounts) * _SIZE)
        finally:
            close(descriptor)
        return cls(folder, keeps=keeps)

    @property
    def has_torch(self) -> bool:
        """Whether a process has imported torch."""
        return bool(self._get(_IMPORTED))

    @property
    def has_unlisted(self) -> bool:
        """Whether a process could not get an account."""
        return bool(self._get(_UNLISTED))

    @property
    def is_over(self) -> bool:
        """Whether the watch is over."""
        return bool(self._get(_OVER))

    def note_unlisted(self) -> None:
        """Notes that a process found no account."""
        self._put(_UNLISTED, 1)

    def end(self) -> None:
        """Ends the watch: recorders that still run stop."""
        self._put(_OVER, 1)

    def note_torch(self) -> None:
        """Notes that this process has imported torch."""
        self._put(_IMPORTED, 1)

    def opened(self) -> Entry | None:
        """Opens an account for this process; None if there is no room or the file cannot be reached."""
        try:
            descriptor = open_file(self._path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            self.note_unlisted()
            return None
        try:
            flock(descriptor, LOCK_EX)
            number = self._used()
            if number == self._most:
                self.note_unlisted()
                return None
            stem = urandom(8).hex().encode()
            _ACCOUNT.pack_into(self._memory, (1 + number) * _SIZE, getpid(), started(), RUNNING, 0, 0, stem, b"")
            self._put(_USED, number + 1)
            # Otherwise a child that another thread forks meanwhile would keep the lock through its descriptor.
            flock(descriptor, LOCK_UN)
        except BaseException:
            self.note_unlisted()
            raise
        finally:
            close(descriptor)
        return Entry(self, number, getpid())

    def accounts(self) -> list[Account]:
        """All accounts, in the order of opening."""
        return [self.account(number) for number in range(self._used())]

    def account(self, number: int) -> Account:
        self.check()
        pid, start, state, records, steps, random, reason = _ACCOUNT.unpack_from(self._memory, (1 + number) * _SIZE)
        stem = f"{pid}-{start}-{random.decode(errors='replace')}"
        return Account(pid, start, state, records, steps, stem, reason.rstrip(b"\0").decode(errors="replace"))

    def check(self) -> ctypes.Array[ctypes.c_char]:
        """The memory. Raises OSError if the file was truncated."""
        try:
            size = stat(self._file).st_size
        except OSError:
            # The file was removed or is outside of this file system, so nothing here can truncate it.
            return self._memory
        if size < len(self._memory):
            raise OSError(EIO, "the ledger of the watch was cut short")
        return self._memory

    @property
    def _most(self) -> int:
        return len(self._memory) // _SIZE - 1

    def _used(self) -> int:
        number = self._get(_USED)
        if not 0 <= number <= self._most:
            raise OSError(EIO, "the ledger of the watch was damaged")
        return number

    def _get(self, at: int) -> int:
        found: int = _NUMBER.unpack_from(self.check(), at)[0]
        return found

    def _put(self, at: int, value: int) -> None:
        _NUMBER.pack_into(self.check(), at, value)


class Entry:
    """The account of this process. A forked child inherits that of its parent and opens another one."""

    def __init__(self, ledger: Ledger, number: int, process: int) -> None:
        self._ledger, self._at, self.process = ledger, (1 + number) * _SIZE, process
        self.stem = ledger.account(number).stem

    def add(self, records: int, steps: int) -> None:
        """Counts records before they are written."""
        memory = self._ledger.check()
        for at, more in ((_RECORDS, records), (_STEPS, steps)):
            [before] = _NUMBER.unpack_from(memory, self._at + at)
            _NUMBER.pack_into(memory, self._at + at, before + more)

    def fail(self, reason: str) -> None:
        """Notes why recording stopped."""
        text = reason.encode(errors="replace")[: _SIZE - 8 - _REASON]
        pack_into(f"{len(text)}s", self._ledger.check(), self._at + _REASON, text)
        self._ledger._put(self._at + _STATE, FAILED)

    def end(self) -> None:
        """Notes that the stream is complete."""
        self._ledger._put(self._at + _STATE, ENDED)


def _mapped(descriptor: int, size: int) -> ctypes.Array[ctypes.c_char]:
    """Maps a file. Python's `mmap` would keep a descriptor and close it later, when its number may be another file."""
    address = _libc.mmap(None, size, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0)
    if address == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return (ctypes.c_char * size).from_address(address)


def started() -> int:
    """The start of this process, in clock ticks since boot; 0 if unknown."""
    try:
        descriptor = open_file("/proc/self/stat", O_RDONLY | O_CLOEXEC)
    except OSError:
        return 0
    try:
        return int(read(descriptor, 4096).rpartition(b")")[2].split()[19])
    finally:
        close(descriptor)
