"""Writes a results file while the cases run."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from .records import SCHEMA_VERSION, CaseRecord, Header, Mutants
from .results import ResultsError
from .shape import ShapeError, read_shape

T = TypeVar("T")


class ResultsWriter:
    """Writes a results file line by line; each line is flushed as it is written. Not for several threads at
    once.

    As a context manager it writes the footer at the end, except after an exception: then the file stays cut
    off. Everything that the reader would refuse is refused here, as `ResultsError`.
    """

    def __init__(self, path: str | Path, header: Mapping[str, object]) -> None:
        """Starts the file anew. `header` has the fields of `records.Header`."""
        self.path = Path(path)
        self._counts: Counter[str] = Counter()
        self._planned = self._checked(Header, header, "the header").planned
        try:
            self._file = self.path.open("w", encoding="ascii", newline="\n")
        except OSError as error:
            raise ResultsError(f"cannot write {self.path}: {error.strerror}") from error
        try:
            self._line("header", {**header, "schema": SCHEMA_VERSION})
        except BaseException:
            self._file.close()
            raise

    def case(self, case: Mapping[str, object]) -> None:
        """Appends one case, a mapping with the fields of `records.CaseRecord`."""
        self._counts[self._checked(CaseRecord, case, f"case {case.get('id')}").verdict] += 1
        self._line("case", case)

    def mutants(self, rows: Iterable[Mapping[str, object]]) -> None:
        """Appends the table mutant x check; `rows` have the fields of `records.Mutant`."""
        table = {"rows": list(rows)}
        self._checked(Mutants, table, "the mutants")
        self._line("mutants", table)

    def close(self) -> None:
        """Writes the footer and closes the file."""
        cases = self._counts.total()
        finished = datetime.now(timezone.utc).isoformat(timespec="seconds")
        complete = cases == self._planned
        try:
            self._line(
                "footer",
                {"finished": finished, "cases": cases, "verdicts": dict(self._counts), "complete": complete},
            )
        finally:
            self._file.close()

    def __enter__(self) -> ResultsWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        if kind is None:
            self.close()
        else:
            self._file.close()

    def _checked(self, cls: type[T], value: Mapping[str, object], where: str) -> T:
        try:
            return read_shape(cls, {key: item for key, item in value.items() if key not in ("kind", "schema")}, where)
        except ShapeError as error:
            raise ResultsError(f"{self.path}: {error}") from error

    def _line(self, kind: str, value: Mapping[str, object]) -> None:
        record = _plain({"kind": kind} | {**value, "kind": kind})
        self._file.write(json.dumps(record, allow_nan=False, separators=(",", ":")) + "\n")
        self._file.flush()


def _plain(value: object) -> Any:
    """`value` with non-finite numbers as the words "nan", "inf" and "-inf"."""
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
