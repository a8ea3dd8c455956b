"""Writes a results file while the cases run."""

from __future__ import annotations

import fcntl
import json
import os
from collections import Counter
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from types import TracebackType

from .plain import plain
from .reader import ResultsError
from .result_lines import KINDS, SCHEMA_VERSION, CaseRecord, Footer, Header, Line, Mutants

_KIND_OF = {cls: kind for kind, cls in KINDS.items()}


class ResultsWriter:
    """Writes a results file line by line and flushes each line. Not thread-safe. The file is locked (`flock`) while it
    is open.

    As a context manager it writes the footer at the end, except after an exception: then the file stays cut off.
    """

    def __init__(self, path: str | Path, header: Header) -> None:
        """Starts a new file; a symbolic link is not followed.

        Raises `ResultsError` if it cannot be opened, and `OSError` if it cannot be written.
        """
        self.path = Path(path)
        self._planned = header.planned
        self._counts: Counter[str] = Counter()
        try:
            descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o666)
            self._file = os.fdopen(descriptor, "w", encoding="ascii", newline="\n")
        except OSError as error:
            raise ResultsError(f"cannot write {path}: {error.strerror}") from error
        try:
            # On a file system without locks, others cannot tell that this run is active.
            with suppress(OSError):
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._write(header, schema=SCHEMA_VERSION)
        except BaseException:
            self._file.close()
            raise

    def case(self, case: CaseRecord) -> None:
        """Appends one case."""
        self._counts[case.verdict] += 1
        self._write(case)

    def mutants(self, mutants: Mutants) -> None:
        """Appends the table mutant x check."""
        self._write(mutants)

    def close(self) -> None:
        """Writes the footer and closes the file."""
        cases = self._counts.total()
        finished = datetime.now(timezone.utc).isoformat(timespec="seconds")
        try:
            self._write(Footer(finished, cases, dict(self._counts), complete=cases == self._planned))
        finally:
            self._file.close()

    def __enter__(self) -> ResultsWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        if kind is None:
            self.close()
        else:
            self._file.close()

    def _write(self, record: Line, **more: object) -> None:
        line = {"kind": _KIND_OF[type(record)], **more, **plain(record)}
        self._file.write(json.dumps(line, allow_nan=False, separators=(",", ":")) + "\n")
        self._file.flush()
