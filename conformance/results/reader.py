"""The results file: JSON lines, appended as cases finish, so that a killed run loses nothing that was done.

    header          what ran, where, and how many cases are planned
    case            a line a case, in the order in which they finished
    mutants         at most one: the table mutant x check
    footer          the counts; without it the run was cut off

Terminal and HTML are rendered from this file alone.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .plain import ShapeError, record
from .records import KINDS, NOT_CONFORMING, NOT_RUN, PASSED, SCHEMA_VERSION, CaseRecord, Footer, Header, Line, Mutants


class ResultsError(Exception):
    """A results file cannot be read or written. `str()` is one line that says which file, where and why."""


class Incomplete(ResultsError):
    """The run was cut off: `found` of `planned` cases are in the file. What is there is whole and can be
    rendered.
    """

    def __init__(self, found: int, planned: int) -> None:
        super().__init__(f"the run was cut off: {found} of {planned} cases")
        self.found, self.planned = found, planned


@dataclass(frozen=True)
class Results:
    """A results file that was read. `cut_off` is None for a complete run."""

    header: Header
    cases: tuple[CaseRecord, ...]
    footer: Footer | None = None
    mutants: Mutants | None = None
    cut_off: Incomplete | None = None

    @property
    def complete(self) -> bool:
        """Whether every planned case is here."""
        return self.cut_off is None

    @property
    def counts(self) -> Counter[str]:
        """How many cases have each verdict."""
        return Counter(case.verdict for case in self.cases)

    @property
    def passed(self) -> int:
        """How many cases a trainer was judged in and found right."""
        return sum(case.verdict in PASSED for case in self.cases)

    @property
    def failed(self) -> int:
        """How many cases are not conforming, those that could not decide included."""
        return sum(case.verdict in NOT_CONFORMING for case in self.cases)

    @property
    def not_run(self) -> int:
        """How many cases were not run. They are neither passed nor failed."""
        return sum(case.verdict in NOT_RUN for case in self.cases)

    @property
    def conforming(self) -> bool:
        """Every planned case is here, at least one was judged, and none is wrong."""
        return self.complete and self.passed > 0 and self.failed == 0


def read_results(path: str | Path) -> Results:
    """Reads a results file. One that was cut off is read as far as it is whole, and `Results.cut_off` says
    so.

    Raises `ResultsError` for anything else that is wrong: no such file, another kind of file, another schema
    version, a damaged line, an unknown field, a footer that disagrees with the cases.
    """
    path = Path(path)
    values, torn = _values(path)
    header = _header(path, values[:1])
    cases: list[CaseRecord] = []
    mutants: Mutants | None = None
    footer: Footer | None = None
    for number, value in enumerate(values[1:], start=2):
        line = _line(value, where := f"{path}: line {number}")
        if footer is not None:
            raise ResultsError(f"{where} comes after the footer")
        if isinstance(line, CaseRecord):
            cases.append(line)
        elif isinstance(line, Mutants) and mutants is None:
            mutants = line
        elif isinstance(line, Footer):
            footer = line
        else:
            raise ResultsError(f"{where} is a second one of the kind {value['kind']!r}")
    found = Counter(case.verdict for case in cases)
    if footer is not None and (footer.verdicts != found or footer.cases != len(cases)):
        raise ResultsError(f"{path}: the footer counts {footer.cases} cases, but these are not the ones in the file")
    cut = torn or footer is None or not footer.complete
    return Results(header, tuple(cases), footer, mutants, Incomplete(len(cases), header.planned) if cut else None)


def _line(value: dict[str, Any], where: str) -> Line:
    kind = value.get("kind")
    if kind not in KINDS:
        raise ResultsError(f"{where} has the kind {kind!r}, but should have one of {', '.join(KINDS)}")
    try:
        return record(KINDS[kind], {name: content for name, content in value.items() if name not in ("kind", "schema")})
    except ShapeError as error:
        raise ResultsError(f"{where}: {error}") from error


def _header(path: Path, first: list[dict[str, Any]]) -> Header:
    if not first or first[0].get("kind") != "header":
        raise ResultsError(f"{path} is not a results file of trainer-conformance: it does not begin with a header")
    version = first[0].get("schema")
    if version != SCHEMA_VERSION:
        raise ResultsError(
            f"{path} has schema version {version!r}, but this trainer-conformance reads version "
            f"{SCHEMA_VERSION}: use the version that wrote it ({first[0].get('version')})"
        )
    header = _line(first[0], f"{path}: line 1")
    assert isinstance(header, Header)
    return header


def _values(path: Path) -> tuple[list[dict[str, Any]], bool]:
    """What is in the lines of the file, and whether the last one was torn off in the middle (it is left out then)."""
    try:
        texts = path.read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise ResultsError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ResultsError(f"{path} is not a results file of trainer-conformance: it is not text") from error
    unfinished = texts.pop()
    if unfinished:
        texts.append(unfinished)
    found: list[dict[str, Any]] = []
    for number, text in enumerate(texts, start=1):
        try:
            value = json.loads(text)
        except ValueError as error:
            if unfinished and number == len(texts) > 1:
                return found, True
            what = "is not JSON" if number > 1 else "is not the header of a results file of trainer-conformance"
            raise ResultsError(f"{path}: line {number} {what}") from error
        if not isinstance(value, dict):
            raise ResultsError(f"{path}: line {number} is not a JSON object")
        found.append(value)
    return found, False
