"""Reads a results file, also of a run that was cut off, and rejects a case that contradicts itself."""

from __future__ import annotations

import json
import math
import stat
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from .plain import ShapeError, record, shortened
from .result_lines import KINDS, PASSED, SCHEMA_VERSION, CaseRecord, Footer, Header, Line, Mutants, Step, Vector

#: Other vectors are absent or empty if the gradients of a step could not be read.
_ALWAYS = ("expected", "observed")
_PROOFS = ("id", "guards", "ranks", "parameters", "steps", "certificate", "power")
_OF_FAILURES = ("mistake", "explained_by", "gradient_factors", "step_factors", "undeclared")


def against_passing(case: CaseRecord, required: Collection[str]) -> str | None:
    """Why a case that claims to have passed did not; None if nothing contradicts it, or it did not pass.

    `required`: the laws that are a MUST, by the header.
    """
    return next(_against(case, required), None) if case.verdict in PASSED else None


def _against(case: CaseRecord, required: Collection[str]) -> Iterator[str]:
    for finding in case.findings:
        if finding.level == "MUST" or finding.law in required:
            yield f"it broke {finding.law}"
    yield from (f"the guard {guard.name!r} failed" for guard in case.guards if not guard.holds)
    for rank in case.ranks:
        if (rank.exit != "exited 0" and not rank.delivered) or rank.stack or rank.traceback:
            yield f"rank {rank.rank} failed"
    if case.first_difference is not None or case.diverged is not None:
        yield "its numbers are wrong"
    if case.unjudged is not None:
        yield "it was not judged"
    yield from (f"it has {name}" for name in _OF_FAILURES if getattr(case, name))
    yield from (f"it has no {name}" for name in _PROOFS if not getattr(case, name))
    yield from _against_proofs(case)


def _against_proofs(case: CaseRecord) -> Iterator[str]:
    """What contradicts a pass, in a case that has all proofs."""
    assert case.certificate is not None and case.power is not None
    is_exact = case.certificate.exact
    if is_exact != (case.verdict == "PASS (exact)"):
        yield f"its certificate says {'exact' if is_exact else 'not exact'}"
    rounding = (stage.stage for stage in case.certificate.stages if is_exact and not stage.exact)
    yield from (f"its certificate says that {stage} is not exact" for stage in rounding)
    # Also if it is NaN.
    if not case.power.value > 1:
        yield f"its power is {case.power.value:g}: a known bug would also pass"
    if [rank.rank for rank in case.ranks] != [*range(len(case.ranks))]:
        yield "its ranks are not one each from 0"
    # A long trajectory is recorded with gaps.
    numbers = [(step.step, step.window) for step in case.steps]
    is_rising = all(one < other for name in zip(*numbers, strict=True) for one, other in pairwise(name))
    if numbers[0][0] != 0 or not is_rising:
        yield "its steps are not in order from 0"
    yield from filter(None, (_wrong(step, case) for step in case.steps))


def _wrong(step: Step, case: CaseRecord) -> str | None:
    """What is wrong with the numbers of a step, or None."""
    count = len(case.parameters)
    for name, vector in vars(step).items():
        if isinstance(vector, tuple):
            if len(vector) != count and (vector or name in _ALWAYS):
                return f"step {step.step} has {len(vector)} numbers in {name}, but the case has {count} parameters"
            if any(value is not None and not math.isfinite(value) for value in vector):
                return f"step {step.step} has a number in {name} that is not finite"
    bounds = [*(step.bound or ()), *(step.gradient_bound or ())]
    if case.verdict == "PASS (exact)" and any(bounds):
        return f"step {step.step} has a bound"
    gradients = (step.gradient_expected, step.gradient_observed, step.gradient_error, step.gradient_bound)
    are_seen = step.gradient_observed is not None and any(value is not None for value in step.gradient_observed)
    if not _are_right(step.expected, step.observed, step.error, step.bound):
        return f"the weights after step {step.step} are wrong"
    if are_seen and not _are_right(*gradients):
        return f"the gradients in step {step.step} are wrong"
    return None


def _are_right(expected: Vector | None, observed: Vector | None, error: Vector | None, bound: Vector | None) -> bool:
    """Whether each observed number is within its bound of the expected one, and the recorded error agrees."""
    if not expected or not observed:
        return False
    nothing = (None,) * len(expected)
    return all(map(_is_right, expected, observed, error or nothing, bound or nothing))


def _is_right(expected: float | None, observed: float | None, error: float | None, bound: float | None) -> bool:
    if expected is None or observed is None:
        return False
    if not bound and expected != observed:
        return False
    # All were rounded to the nearest float when written, except what the trainer computed.
    rounding, distance = _half_ulp(expected), abs(Fraction(observed) - Fraction(expected))
    if error is not None and abs(Fraction(error) - distance) > rounding + _half_ulp(error):
        return False
    return (error or 0) <= (bound or 0) and (not bound or distance <= Fraction(bound) + rounding + _half_ulp(bound))


def _half_ulp(value: float) -> Fraction:
    return Fraction(math.ulp(value)) / 2


class ResultsError(Exception):
    """A results file cannot be read or written. `str()` is one line: which file, where and why."""


@dataclass(frozen=True)
class Results:
    """The contents of a results file.

    cut_off: None if it has every planned case, else how many it has. Those are complete.
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
        """The number of cases that are not conforming, including inconclusive ones."""
        return sum(case.failed for case in self.cases)

    @property
    def not_run(self) -> int:
        """The number of cases that did not run. They count neither as passed nor as failed."""
        return len(self.cases) - self.passed - self.failed

    @property
    def conforming(self) -> bool:
        """Whether every planned case is there, at least one passed, and none failed."""
        return self.cut_off is None and self.passed > 0 and self.failed == 0


def read_results(path: str | Path) -> Results:
    """Reads a results file; a file that was cut off up to its last complete line.

    Raises:
        ResultsError: the file does not exist or has another kind or schema version, a line is damaged or has an unknown
            field, or the file contradicts itself: a passed case has evidence that it failed, a case occurs twice, or a
            footer or a plan disagrees with the cases.
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
            raise ResultsError(f"{where} comes after the footer, which must be the last line")
        if isinstance(line, CaseRecord):
            name = line.target, line.trainer, line.id
            if name in known:
                raise ResultsError(f"{where} repeats the case {line.id} of {line.trainer}")
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
                f"{where} is a second line of the kind {shortened(value['kind'])}, but only one is allowed"
            )
    found = Counter(case.verdict for case in cases)
    if footer is not None and (footer.verdicts != found or footer.cases != len(cases)):
        raise ResultsError(f"{path}: the footer does not match the cases in the file (it counts {footer.cases})")
    if len(cases) > header.planned or (footer is not None and footer.complete != (len(cases) == header.planned)):
        what = ", but the footer says that all are there" if footer and footer.complete else ""
        raise ResultsError(f"{path}: {header.planned} cases were planned, but {len(cases)} are in the file{what}")
    is_complete = not torn and footer is not None and footer.complete
    cut_off = None if is_complete else f"the run was cut off: {len(cases)} of {header.planned} cases"
    return Results(header, tuple(cases), footer, mutants, cut_off)


def _line(value: dict[str, Any], where: str) -> Line:
    kind = value.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        raise ResultsError(f"{where} has the unknown kind {shortened(kind)}; expected one of {', '.join(KINDS)}")
    try:
        return record(KINDS[kind], {name: content for name, content in value.items() if name not in ("kind", "schema")})
    except ShapeError as error:
        raise ResultsError(f"{where}: {error}") from error
    except RecursionError as error:
        raise ResultsError(f"{where} is nested too deeply") from error


def _header(path: Path, first: list[dict[str, Any]]) -> Header:
    if not first or first[0].get("kind") != "header":
        raise ResultsError(f"{path} is not a results file of trainer-conformance: it does not start with a header")
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
    """The values of the file's lines, and whether the last line was cut off; then it is omitted."""
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
        raise ValueError(f"{text} is too large")
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name occurs twice")
    return found
