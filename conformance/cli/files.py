"""The files that commands write, and the folder of a run.

A run writes its results to a file of its own, which it holds locked. When the run ends, that file becomes the results
of the folder, and the report is rendered from it. So a run that is killed leaves earlier results as they were, and its
own for `--resume`; and two runs in one folder do not meet.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

RESULTS, REPORT = "conformance-results.jsonl", "conformance-report.html"
_UNFINISHED = "conformance-unfinished-"


class RunFolder:
    """The folder that a run writes to.

    Attributes:
        own: the results file of this run, until it is put in place.
    """

    def __init__(self, folder: Path) -> None:
        now = datetime.now().strftime("%Y%m%d-%H%M%S")
        self._folder = folder
        self.results, self.report = folder / RESULTS, folder / REPORT
        self.own = folder / f"{_UNFINISHED}{now}-{os.getpid()}.jsonl"
        self._earlier = _identity(self.results)

    def unwritable(self) -> tuple[Path, str] | None:
        """The file that cannot be written, and why; None if all can."""
        for file in (self.results, self.report):
            reason = unwritable(file)
            if reason is not None:
                return file, reason
        return None

    def unfinished(self) -> list[Path]:
        """The results of runs that were killed, the newest first. What a run still writes is not among them."""
        files = [file for file in self._folder.glob(f"{_UNFINISHED}*.jsonl") if file.is_file() and not _is_locked(file)]
        return sorted(files, key=lambda file: file.name, reverse=True)

    def remove_report(self) -> None:
        """Remove the report of earlier results, which must not stand beside newer ones."""
        self.report.unlink(missing_ok=True)

    @contextmanager
    def placing(self) -> Iterator[tuple[Path, Path]]:
        """Put the results in place. What the block writes to the second path becomes their report.

        Yields the paths of the results and of the report. They have numbers if another run has put its results into the
        folder since this one began.

        Raises OSError.
        """
        with _held(self._folder):
            if _identity(self.results) != self._earlier:
                self.results, self.report = self._numbered()
            self.remove_report()
            os.replace(self.own, self.results)
            unfinished = self.report.with_name(f"{self.own.stem}.html")
            try:
                yield self.results, unfinished
                os.replace(unfinished, self.report)
            finally:
                unfinished.unlink(missing_ok=True)

    def discard(self) -> None:
        """Remove this run's own file: there is nothing in it."""
        self.own.unlink(missing_ok=True)

    def _numbered(self) -> tuple[Path, Path]:
        number = 2
        while self._folder.joinpath(results := f"{Path(RESULTS).stem}-{number}.jsonl").exists():
            number += 1
        return self._folder / results, self._folder / f"{Path(REPORT).stem}-{number}.html"


def unwritable(file: Path) -> str | None:
    """Why ``file`` cannot be written, if it cannot. Its folder is made."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        if file.exists():
            file.open("ab").close()
        else:
            tempfile.TemporaryFile(dir=file.parent).close()
    except (FileExistsError, NotADirectoryError):
        return f"{file.parent} is not a folder"
    except OSError as error:
        return error.strerror
    return None


def _identity(file: Path) -> tuple[int, int] | None:
    """What tells a file from another one that took its place."""
    try:
        found = file.stat()
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
    """Only one process at a time is inside for this folder."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        # Some network file systems have no locks for folders.
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
