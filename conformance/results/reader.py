"""Reads a results file back, also that of a run that was cut off."""

from __future__ import annotations

import json
import math
import stat
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from .passing import against_passing
from .plain import ShapeError, record, shortened
from .records import KINDS, PASSED, SCHEMA_VERSION, CaseRecord, Footer, Header, Line, Mutants


class ResultsError(Exception):
    """A results file cannot be read or written. `str()` is one line that says which file, where and why."""


@dataclass(frozen=True)
class Results:
    """A results file that was read.

    cut_off: None if every planned case is there, else how many are. Those that are there are whole.
    """

    header: Header
    cases: tuple[CaseRecord, ...]
    footer: Footer | None = None
    mutants: Mutants | None = None
    cut_off: str | None = None

    @cached_property
    def passed(self) -> int:
        return sum(case.verdict in PASSED for case in self.cases)

    @cached_property
    def failed(self) -> int:
        """How many cases are not conforming, inconclusive ones included."""
        return sum(case.failed for case in self.cases)

    @property
    def not_run(self) -> int:
        """How many cases did not run. They count neither as passed nor as failed."""
        return len(self.cases) - self.passed - self.failed

    @property
    def conforming(self) -> bool:
        """Every planned case is there, at least one passed, and none failed."""
        return self.cut_off is None and self.passed > 0 and self.failed == 0


def read_results(path: str | Path) -> Results:
    """Reads a results file; one that was cut off as far as its lines are whole.

    Raises:
        ResultsError: there is no such file, it is of another kind or schema version, a line is damaged or has an
            unknown field, or the file contradicts itself: a case that passed beside evidence that it did not, a case
            twice, a footer or a plan that disagrees with the cases.
    """
    path = Path(path)
    values, torn = _values(path)
    header = _header(path, values[:1])
    required = {text.law for text in header.laws if text.level == "MUST"}
    cases: list[CaseRecord] = []
    known: set[tuple[str, str, str]] = set()
    mutants: Mutants | None = None
    footer: Footer | None = None
    for number, value in enumerate(values[1:], start=2):
        line = _line(value, where := f"{path}: line {number}")
        if footer is not None:
            raise ResultsError(f"{where} comes after the footer")
        if isinstance(line, CaseRecord):
            name = line.target, line.trainer, line.id
            if name in known:
                raise ResultsError(f"{where} has the case {line.id} of {line.trainer} a second time")
            if (against := against_passing(line, required)) is not None:
                raise ResultsError(f"{where} says {line.verdict}, but {against}")
            known.add(name)
            cases.append(line)
        elif isinstance(line, Mutants) and mutants is None:
            mutants = line
        elif isinstance(line, Footer):
            footer = line
        else:
            raise ResultsError(
                f"{where} is a second line of the kind {shortened(value['kind'])}, but there may be one only"
            )
    found = Counter(case.verdict for case in cases)
    if footer is not None and (footer.verdicts != found or footer.cases != len(cases)):
        raise ResultsError(f"{path}: the footer counts {footer.cases} cases, but these are not the ones in the file")
    if len(cases) > header.planned or (footer is not None and footer.complete != (len(cases) == header.planned)):
        what = "the footer says that all are there" if footer and footer.complete else "that does not fit"
        raise ResultsError(f"{path}: {header.planned} cases were planned, and {len(cases)} are in the file; {what}")
    is_complete = not torn and footer is not None and footer.complete
    cut_off = None if is_complete else f"the run was cut off: {len(cases)} of {header.planned} cases"
    return Results(header, tuple(cases), footer, mutants, cut_off)


def _line(value: dict[str, Any], where: str) -> Line:
    kind = value.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        raise ResultsError(f"{where} has the kind {shortened(kind)}, but should have one of {', '.join(KINDS)}")
    try:
        return record(KINDS[kind], {name: content for name, content in value.items() if name not in ("kind", "schema")})
    except ShapeError as error:
        raise ResultsError(f"{where}: {error}") from error
    except RecursionError as error:
        raise ResultsError(f"{where} is nested too deeply") from error


def _header(path: Path, first: list[dict[str, Any]]) -> Header:
    if not first or first[0].get("kind") != "header":
        raise ResultsError(f"{path} is not a results file of trainer-conformance: it does not begin with a header")
    version = first[0].get("schema")
    if type(version) is not int or version != SCHEMA_VERSION:
        raise ResultsError(
            f"{path} has schema version {shortened(version)}, but this trainer-conformance reads version "
            f"{SCHEMA_VERSION}: use the version that wrote it ({shortened(first[0].get('version'))})"
        )
    header = _line(first[0], f"{path}: line 1")
    assert isinstance(header, Header)
    return header


def _values(path: Path) -> tuple[list[dict[str, Any]], bool]:
    """The values in the lines of the file, and whether the last line broke off in the middle; it is left out then."""
    try:
        # A pipe may have no writer, and a device no end.
        if not (stat.S_ISREG(mode := path.stat().st_mode) or stat.S_ISDIR(mode)):
            raise ResultsError(f"cannot read {path}: it is not a file")
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
            value = json.loads(text, parse_constant=_refused, parse_float=_finite, object_pairs_hook=_object)
        except RecursionError as error:
            raise ResultsError(f"{path}: line {number} is nested too deeply") from error
        except ValueError as error:
            if unfinished and number == len(texts) > 1:
                return found, True
            what = "is not JSON" if number > 1 else "is not the header of a results file of trainer-conformance"
            raise ResultsError(f"{path}: line {number} {what}") from error
        if not isinstance(value, dict):
            raise ResultsError(f"{path}: line {number} is not a JSON object")
        found.append(value)
    return found, False


def _refused(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is beyond all numbers")
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name occurs twice")
    return found
