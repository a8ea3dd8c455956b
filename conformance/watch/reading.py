"""Reads what recorders write, while they write it."""

from __future__ import annotations

from io import TextIOWrapper
from pathlib import Path

from conformance.watch import records
from conformance.watch.judging.judge import Judge
from conformance.watch.judging.launch import Launch
from conformance.watch.lines import decoded
from conformance.watch.parts import following_part

_AT_ONCE = 2000
"""Lines of one process, before it is the next one's turn."""


class Reader:
    """Hands a judge each record of each process of a folder, once."""

    def __init__(self, folder: Path, judge: Judge) -> None:
        self._folder, self._judge = folder, judge
        self._open: dict[Path, _File] = {}

    def read(self) -> bool:
        """Read what is new; returns whether there was something."""
        for path in sorted(self._folder.glob("*.0.jsonl"), key=lambda path: path.stat().st_mtime):
            if path not in self._open:
                self._open[path] = _File(path)
        found = [file.read(self._judge) for file in self._open.values()]
        return any(found)

    def finish(self) -> None:
        """Read the rest: all processes have ended."""
        while self.read() or self._end_one():
            pass
        for file in self._open.values():
            file.close()
        for path in self._folder.glob("failed.*"):
            self._judge.findings.undecided(f"a process could not be watched: {path.read_text()}")

    def _end_one(self) -> bool:
        """Let a rank that waits go on: those that it waits for have no more to say."""
        return any(file.end() for file in self._open.values())


class _File:
    """What one process writes, in one file after the other; those that are read are removed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: TextIOWrapper = path.open(encoding="ascii")
        self._rest = ""
        self._launch: Launch | None = None
        self._rank = 0

    def close(self) -> None:
        self._file.close()

    def end(self) -> bool:
        """Nobody writes to it any more; returns whether its launch did not know."""
        return self._launch is not None and not self._launch.is_ahead(self._rank) and self._launch.end(self._rank)

    def read(self, judge: Judge) -> bool:
        if self._launch is not None and self._launch.is_ahead(self._rank):
            return False
        for count in range(_AT_ONCE):
            line = self._rest + self._line()
            if not line.endswith("\n"):
                self._rest = line
                return count > 0
            self._rest = ""
            record = decoded(line)
            if isinstance(record, records.Began):
                self._launch, self._rank = judge.begin(record), record.rank
            elif self._launch is not None:
                self._launch.feed(self._rank, record)
        return True

    def _line(self) -> str:
        """The next line, or what there is of it."""
        line = self._file.readline()
        if line.endswith("\n"):
            return line
        # Asked before the rest is read, as what is written meanwhile is this part's, too.
        following = following_part(self._path)
        is_complete = following.exists()
        line += self._file.readline()
        if line or not is_complete:
            return line
        self._file.close()
        self._path.unlink()
        self._path, self._file = following, following.open(encoding="ascii")
        return self._file.readline()
