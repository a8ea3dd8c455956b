"""The output folders of commands.

A command removes an earlier report when it starts, and puts its own files in place when it ends.
A run writes its results to its own locked file. At its end, that file becomes the results of the folder, and the
report is rendered from it. A killed run thus keeps earlier results, and its own for `--resume`. Two runs in one folder
do not collide.
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
    """The folder to which a command writes files when it ends.

    Attributes:
        files: these files; the last one is the report.
    """

    def __init__(self, folder: Path, *names: str) -> None:
        self._folder = folder
        self.files = [folder / name for name in names]
        self._earlier = [_identity(file) for file in self.files]

    @property
    def report(self) -> Path:
        return self.files[-1]

    def unwritable(self) -> str | None:
        """One line: which file cannot be written, why, and what to do. None if all can."""
        found = ((file, unwritable(file)) for file in self.files)
        said = (f"cannot write {file}: {why}; name another folder with --output" for file, why in found if why)
        return next(said, None)

    def remove_report(self) -> None:
        """Remove the report of an earlier command, which would stay if this one does not end."""
        with _held(self._folder):
            if _identity(self.report) == self._earlier[-1]:
                self.report.unlink(missing_ok=True)

    @contextmanager
    def placing(self) -> Iterator[list[Path]]:
        """The block puts its files in place.

        Yields their paths. They get numbers if another command has written to the folder meanwhile.

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
    """The output folder of a run.

    Attributes:
        own: the results file of this run, until it is in place.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, RESULTS, REPORT)
        now = datetime.now().strftime("%Y%m%d-%H%M%S")
        self.own = folder / f"{_UNFINISHED}{now}-{os.getpid()}.jsonl"

    @property
    def results(self) -> Path:
        return self.files[0]

    def kept(self) -> Path | None:
        """Where the results of this run are; None if they were removed."""
        if self.own.exists():
            return self.own
        return None if _identity(self.results) in (None, self._earlier[0]) else self.results

    def unfinished(self) -> list[Path]:
        """The results of killed runs, the newest first, without those of a run in progress."""
        files = [file for file in self._folder.glob(f"{_UNFINISHED}*.jsonl") if file.is_file() and not _is_locked(file)]
        return sorted(files, key=lambda file: file.name, reverse=True)

    @contextmanager
    def placing(self) -> Iterator[list[Path]]:
        """Put the results in place; the block writes their report."""
        with super().placing() as files:
            os.replace(self.own, self.results)
            yield files

    def discard(self) -> None:
        """Remove this run's own file, which is empty."""
        self.own.unlink(missing_ok=True)


def report_of(results: Path) -> Path:
    """The report next to a results file, with the same number."""
    number = re.fullmatch(rf"{Path(RESULTS).stem}(-\d+)\.jsonl", results.name)
    return results.parent / (REPORT if number is None else f"{Path(REPORT).stem}{number[1]}.html")


def unwritable(file: Path) -> str | None:
    """Why ``file`` cannot be written, if it cannot. Creates its folder."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        if not file.is_symlink() and file.exists():
            if file.is_fifo():
                return "it is a pipe"
            # The other end of a device may be closed.
            os.close(os.open(file, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK))
        if is_replaced(file):
            tempfile.TemporaryFile(dir=file.parent).close()
    except (FileExistsError, NotADirectoryError):
        return f"{file.parent} is not a folder"
    except OSError as error:
        return error.strerror
    return None


def _identity(file: Path | int) -> tuple[int, int] | None:
    """Tells a file from another one that replaced it."""
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
        pass  # this file system has no locks, or reading the file reports the problem
    return False


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """One process at a time runs this block for a folder.

    The lock is our own file: others may have locked the folder itself.
    """
    lock = folder / _LOCK
    while True:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
        try:
            # Some network file systems have no locks.
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            # Its last holder has removed it.
            if _identity(lock) != _identity(descriptor):
                continue
            try:
                yield
            finally:
                lock.unlink(missing_ok=True)
            return
        finally:
            os.close(descriptor)
