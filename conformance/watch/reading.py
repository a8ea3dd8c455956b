"""Reads the records of all processes while they are written, and reports which are missing."""

from __future__ import annotations

import os
import stat
from io import BufferedReader
from itertools import zip_longest
from pathlib import Path

from conformance.watch import records
from conformance.watch.judging.findings import Findings, Said, said
from conformance.watch.judging.launch import Launch
from conformance.watch.judging.watch_judge import Judge
from conformance.watch.ledger import FAILED, NAME, Account, Ledger
from conformance.watch.record_lines import decoded, part

_AT_ONCE = 2000
"""Lines to read from one process before the next one's turn."""


class Reader:
    """Passes each record of each process to a judge once."""

    def __init__(self, folder: Path, judge: Judge) -> None:
        self._folder, self._judge = folder, judge
        self._ledger = Ledger(folder, keeps=True)
        self._streams: list[_Stream] = []

    def read(self) -> bool:
        """Reads new records. Returns whether there were any."""
        for account in self._accounts()[len(self._streams) :]:
            self._streams.append(_Stream(self._folder, account))
        found = [stream.read(self._judge) for stream in self._streams]
        return any(found)

    def finish(self) -> bool:
        """Reads the rest, after all processes have ended. Returns whether no record is missing."""
        while self.read() or self._end_one():
            pass
        findings, is_whole = self._judge.findings, True
        for stream, account in zip_longest(self._streams, self._accounts()[: len(self._streams)]):
            if (lacks := stream.lacks(account)) is not None:
                is_whole = False
                stream.fail(lacks, findings)
            stream.close()
        written = {stream.account.stem for stream in self._streams}
        for name in sorted(_names(self._folder)):
            if name.partition(".")[0] not in written and name != NAME:
                findings.lack(said("foreign-file", name=name))
        try:
            has_unlisted = self._ledger.has_unlisted
        except OSError as error:
            findings.lack(said("processes-unknown", reason=error.strerror))
            return False
        if has_unlisted:
            findings.lack(said("no-account"))
        return is_whole and not has_unlisted

    def _accounts(self) -> list[Account]:
        try:
            return self._ledger.accounts()
        except OSError:
            return []

    def _end_one(self) -> bool:
        """Ends one stream without further records, so waiting ranks continue."""
        return any(stream.end() for stream in self._streams)


def _opened(path: str, flags: int) -> int:
    """Opens a file without waiting on a pipe or following a link."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW)


def _names(folder: Path) -> list[str]:
    """The names of files in a folder; none if it cannot be read."""
    try:
        return os.listdir(folder)
    except OSError:
        return []


class _Stream:
    """The files of one process, read one after the other. Removes those that were read."""

    def __init__(self, folder: Path, account: Account) -> None:
        self.account = account
        self._folder = folder
        self._number = 0
        self._file: BufferedReader | None = None
        self._rest = b""
        self._error: str | None = None
        self._count = self._steps = 0
        self._launch: Launch | None = None
        self._rank = 0

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def end(self) -> bool:
        """Tells the launch that the process writes no further records. Returns whether that is new."""
        return self._launch is not None and not self._launch.is_ahead(self._rank) and self._launch.end(self._rank)

    def fail(self, reason: Said, findings: Findings) -> None:
        """Ends the judgement of a stream with missing records: a gap is no evidence against the script."""
        findings.lack(reason)
        if self._launch is not None:
            self._launch.blind(self._rank)

    def lacks(self, account: Account | None) -> Said | None:
        """The missing records, and the step after which they are missing; None if the stream is complete. account: its
        final state, if known."""
        after = {"pid": self.account.pid, "step": self._steps}
        if self._error is not None:
            return said("records-unreadable", **after, reason=self._error)
        if account is None or account.stem != self.account.stem:
            return said("account-lost", **after)
        if account.state == FAILED and not account.records:
            return said("recorder-not-started", pid=account.pid, reason=account.reason)
        missing = account.records - self._count
        if account.reason:
            return said("records-stopped", **after, reason=account.reason)
        return (
            said("records-missing", **after, missing=missing)
            if account.state == FAILED or missing or self._rest
            else None
        )

    def read(self, judge: Judge) -> bool:
        if self._error is not None or (self._launch is not None and self._launch.is_ahead(self._rank)):
            return False
        for count in range(_AT_ONCE):
            try:
                line = self._rest + self._line()
                if not line.endswith(b"\n"):
                    self._rest = line
                    return count > 0
                self._rest = b""
                record = decoded(line)
            except (OSError, ValueError) as error:
                self._error = error.strerror if isinstance(error, OSError) else str(error)
                return False
            self._take(record, judge)
        return True

    def _take(self, record: records.Record, judge: Judge) -> None:
        self._count += 1
        self._steps += isinstance(record, (records.Stepped, records.Passed))
        try:
            if isinstance(record, records.Began) and self._count > 1:
                self._error = "the stream begins twice"
            elif isinstance(record, records.Began):
                self._launch, self._rank = judge.begin(record), record.rank
            elif self._launch is not None:
                self._launch.feed(self._rank, record)
        except Exception as error:
            self._error = f"{type(error).__name__}: {error}"

    def _line(self) -> bytes:
        """The next line, or the part of it that exists."""
        if self._file is None:
            path = part(self._folder, self.account.stem, self._number)
            if not path.exists():
                return b""
            self._file = open(path, "rb", opener=_opened)  # noqa: SIM115  # stays open until all is read
            if not stat.S_ISREG(os.fstat(self._file.fileno()).st_mode):
                raise ValueError("another file replaced the records")
        line = self._file.readline()
        if line.endswith(b"\n"):
            return line
        # Checked before the last read, because lines written meanwhile also belong to this file.
        is_complete = part(self._folder, self.account.stem, self._number + 1).exists()
        line += self._file.readline()
        if line or not is_complete:
            return line
        self._file.close()
        part(self._folder, self.account.stem, self._number).unlink()
        self._number, self._file = self._number + 1, None
        return self._line()
