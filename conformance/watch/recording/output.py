"""Appends the records of this process to its files, and counts them in the process's account.

No file stays open in the script's process, because a script may close or replace descriptors that it did not open.
Never writes to a file of someone else. Tensors on a GPU are read when their record is written: reading them at once
would wait for all work of the GPU, and keep the script from queuing more.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import fields
from errno import EFBIG

# Bound before a script can patch them.
from os import close, fstat, getpid, write
from os import open as open_file
from resource import RLIM_INFINITY, RLIMIT_FSIZE, getrlimit
from typing import Any

import torch

from conformance.watch import records
from conformance.watch.ledger import Entry, Ledger
from conformance.watch.record_lines import MOST_BYTES, SKETCHES, encoded, part


class Later:
    """Copies of tensors, and the function that reads them."""

    __slots__ = ("_read", "_tensors")

    def __init__(self, read: Callable[..., Any], *tensors: torch.Tensor) -> None:
        self._read, self._tensors = read, tensors

    def now(self) -> Any:
        return self._read(*self._tensors)


def later(read: Callable[..., Any], *tensors: torch.Tensor) -> Any:
    """The result of `read` on tensors: immediate if they are on the CPU, else when `settle` is called."""
    if all(tensor.device.type == "cpu" for tensor in tensors):
        return read(*tensors)
    return Later(read, *(tensor.detach().clone() for tensor in tensors))


def settle(record: records.Record) -> None:
    """Reads all values of a record from their devices."""
    for field in fields(record):
        value = getattr(record, field.name)
        if isinstance(value, Later):
            setattr(record, field.name, value.now())
    for name in SKETCHES[type(record)]:
        setattr(record, name, getattr(record, name).numpy(force=True))


_NEW, _MORE = os.O_CREAT | os.O_EXCL, 0
_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
_STEPS = records.Stepped, records.Passed


class Lost(Exception):
    """Recording has stopped. `str()` is the reason."""


class Output:
    """Writes to the folder of a watch. ledger: that of the folder, if it is already mapped. Raises OSError without a
    ledger."""

    def __init__(self, folder: str, ledger: Ledger | None = None) -> None:
        self._folder = folder
        self.ledger = ledger or Ledger(folder)
        self._entry: Entry | None = None
        self._number = 0
        self._file: tuple[int, int] | None = None

    @property
    def is_open(self) -> bool:
        """Whether something was written."""
        return self._entry is not None

    def write(self, several: Sequence[records.Record]) -> None:
        """Appends records. Raises Lost if recording has stopped; then the account has the reason."""
        entry = self._opened()
        try:
            entry.add(len(several), sum(isinstance(record, _STEPS) for record in several))
            for record in several:
                settle(record)
            self._append("".join(map(encoded, several)).encode("ascii"))
        except BaseException as error:
            # If the account cannot be reached, the watch still reports missing records.
            with suppress(OSError):
                entry.fail(_reason(error))
            raise

    def end(self) -> None:
        """Marks the stream as complete."""
        if self._entry is not None and self._entry.process == getpid():
            self._entry.end()

    def _opened(self) -> Entry:
        """The account of this process. Raises Lost."""
        if self.ledger.is_over:
            raise Lost("the watch is over")
        if self._entry is None:
            self._entry = self.ledger.opened()
            if self._entry is None:
                raise Lost("the ledger has no account for this process")
        elif self._entry.process != getpid():
            # A fork by Python would have started a new recorder.
            if (of_child := self.ledger.opened()) is not None:
                of_child.fail("a library forked the process outside of Python")
            raise Lost("this process was forked by a library")
        return self._entry

    def _append(self, text: bytes) -> None:
        assert self._entry is not None
        is_new = self._file is None
        path = part(self._folder, self._entry.stem, self._number)
        descriptor = open_file(path, _FLAGS | (_NEW if is_new else _MORE), 0o600)
        try:
            found = fstat(descriptor)
            if self._file is None:
                self._file = found.st_dev, found.st_ino
            size = found.st_size + len(text)
            limit, _ = getrlimit(RLIMIT_FSIZE)
            if limit != RLIM_INFINITY and size > limit:
                # A write beyond the limit raises a signal, which may end the script.
                raise OSError(EFBIG, "the script limits the size of files (RLIMIT_FSIZE)")
            while text:
                if _identity(descriptor) != self._file:
                    raise Lost("another file replaced the records")
                text = text[write(descriptor, text) :]
        finally:
            if _identity(descriptor) == self._file:
                close(descriptor)
        if size > MOST_BYTES:
            self._number, self._file = self._number + 1, None
            # The reader may remove a part when the next one exists.
            self._append(b"")


def _identity(descriptor: int) -> tuple[int, int] | None:
    """Identifies the file behind a descriptor: another thread may have closed or replaced it."""
    try:
        found = fstat(descriptor)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _reason(error: BaseException) -> str:
    if isinstance(error, Lost):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror} in the folder of its records" if error.errno != EFBIG else error.strerror
    return f"failed to write records: {type(error).__name__}: {error}"
