"""The verdicts of cases, for which reasons, and in which of several right ways: of a run and of a published report."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Collection, Iterable
from pathlib import Path

from conformance.results import read_results
from conformance.results.records import CaseRecord

REPORTS = Path(__file__).parents[2] / "reports"


def judged_by_command(
    folder: Path, target: str, cases: Iterable[str], processes: int | None = None
) -> list[CaseRecord]:
    """The cases that have a verdict, by `conformance run`: all, or these; as many at a time as the machine has cores,
    or ``processes``."""
    command = [sys.executable, "-m", "conformance", "run", *target.split(), "--output", str(folder)]
    command += [word for case in cases for word in ("--case", case)]
    command += ["--processes", str(processes)] if processes else []
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    results = read_results(folder / "conformance-results.jsonl")
    assert results.cut_off is None
    return [case for case in results.cases if case.verdict not in ("UNSUPPORTED", "UNAVAILABLE")]


def reasons(case: CaseRecord) -> tuple[str, tuple[str, ...], set[str], set[str]]:
    """The verdict, the known bugs that explain the numbers, the laws that are broken, and what it does otherwise."""
    return case.verdict, case.explained_by, {one.law for one in case.findings}, {one.way for one in case.behaviour}


def published(name: str, ids: Collection[str]) -> dict[str, tuple[str, tuple[str, ...], set[str], set[str]]]:
    """Those of these cases in the report of a framework."""
    cases = read_results(REPORTS / f"{name.replace('_', '-')}.jsonl").cases
    return {case.id: reasons(case) for case in cases if case.id in ids}
