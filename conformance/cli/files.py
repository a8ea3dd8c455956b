"""The folders into which commands put files.

A command removes the report of an earlier one when it starts, and puts its own files in place when it ends.
A run writes its results to a file of its own, which it holds locked. When the run ends, that file becomes the results
of the folder, and the report is rendered from it. So a run that is killed leaves earlier results as they were, and its
own for `--resume`; and two runs in one folder do not meet.
"""

from __future__ import annotations

import fcntl
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from conformance.report.text import is_replaced

RESULTS, REPORT = "conformance-results.jsonl", "conformance-report.html"
WATCH_REPORT = "conformance-watch.html"
_UNFINISHED = "conformance-unfinished-"
_LOCK = ".conformance-lock"


class OutputFolder:
    """A folder into which a command puts files when it ends.

    Attributes:
        files: those that it puts there; the last is the report.
    """

    def __init__(self, folder: Path, *names: str) -> None:
        self._folder = folder
        self.files = [folder / name for name in names]
        self._earlier = [_identity(file) for file in self.files]

    @property
    def report(self) -> Path:
        return self.files[-1]

    def unwritable(self) -> str | None:
        """Which file cannot be written, why, and what to do: one line; None if all can."""
        found = ((file, unwritable(file)) for file in self.files)
        said = (f"cannot write {file}: {why}; name another folder with --output" for file, why in found if why)
        return next(said, None)

    def remove_report(self) -> None:
        """Remove the report of an earlier command, which must not stand beside one that does not end."""
        with _held(self._folder):
            if _identity(self.report) == self._earlier[-1]:
                self.report.unlink(missing_ok=True)

    @contextmanager
    def placing(self) -> Iterator[list[Path]]:
        """The block puts its files in place.

        Yields their paths. They have numbers if another command has put its own into the folder since this one began.

        Raises OSError.
        """
        with _held(self._folder):
            if _identity(self.files[0]) not in (None, self._earlier[0]):
                self.files = self._numbered()
            self.report.unlink(missing_ok=True)
            yield self.files

    def _numbered(self) -> list[Path]:
        number = 2
        while (files := [file.with_stem(f"{file.stem}-{number}") for file in self.files])[0].exists():
            number += 1
        return files


class RunFolder(OutputFolder):
    """The folder that a run writes to.

    Attributes:
        own: the results file of this run, until it is put in place.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, RESULTS, REPORT)
        now = datetime.now().strftime("%Y%m%d-%H%M%S")
        self.own = folder / f"{_UNFINISHED}{now}-{os.getpid()}.jsonl"

    @property
    def results(self) -> Path:
        return self.files[0]

    def kept(self) -> Path | None:
        """Where the results of this run are; None if somebody removed them."""
        if self.own.exists():
            return self.own
        return None if _identity(self.results) in (None, self._earlier[0]) else self.results

    def unfinished(self) -> list[Path]:
        """The results of runs that were killed, the newest first. What a run still writes is not among them."""
        files = [file for file in self._folder.glob(f"{_UNFINISHED}*.jsonl") if file.is_file() and not _is_locked(file)]
        return sorted(files, key=lambda file: file.name, reverse=True)

    @contextmanager
    def placing(self) -> Iterator[list[Path]]:
        """Put the results in place; the block writes their report."""
        with super().placing() as files:
            os.replace(self.own, self.results)
            yield files

    def discard(self) -> None:
        """Remove this run's own file: there is nothing in it."""
        self.own.unlink(missing_ok=True)


def report_of(results: Path) -> Path:
    """The report next to a results file; it has the same number."""
    number = re.fullmatch(rf"{Path(RESULTS).stem}(-\d+)\.jsonl", results.name)
    return results.parent / (REPORT if number is None else f"{Path(REPORT).stem}{number[1]}.html")


def unwritable(file: Path) -> str | None:
    """Why ``file`` cannot be written, if it cannot. Its folder is made."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        if not file.is_symlink() and file.exists():
            if file.is_fifo():
                return "it is a pipe"
            # A device may have no other side yet.
            os.close(os.open(file, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK))
        if is_replaced(file):
            tempfile.TemporaryFile(dir=file.parent).close()
    except (FileExistsError, NotADirectoryError):
        return f"{file.parent} is not a folder"
    except OSError as error:
        return error.strerror
    return None


def _identity(file: Path | int) -> tuple[int, int] | None:
    """What tells a file from another one that took its place."""
    try:
        found = os.stat(file, follow_symlinks=isinstance(file, int))
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def _is_locked(file: Path) -> bool:
    try:
        with file.open("rb") as opened:
            fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        pass  # there are no locks in this file system, or who reads the file says what is wrong with it
    return False


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Only one process at a time is inside for this folder.

    The lock is a file of ours: anybody may have locked the folder itself.
    """
    lock = folder / _LOCK
    while True:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
        try:
            # Some network file systems have no locks.
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            # Who held it before has removed it.
            if _identity(lock) != _identity(descriptor):
                continue
            try:
                yield
            finally:
                lock.unlink(missing_ok=True)
            return
        finally:
            os.close(descriptor)
