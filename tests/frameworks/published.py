"""The verdicts of cases, for which reasons, and in which of several right ways: of a run and of a published report."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Collection, Iterable, Iterator
from functools import cache
from pathlib import Path

from conformance.results import read_results
from conformance.results.records import CaseRecord

REPORTS = Path(__file__).parents[2] / "reports"
#: Verdicts of cases that were not run.
NONE = ("UNSUPPORTED", "UNAVAILABLE")


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
    return [case for case in results.cases if case.verdict not in NONE]


Reasons = tuple[str, tuple[str, ...], frozenset[str], frozenset[str]]


def reasons(case: CaseRecord) -> Reasons:
    """The verdict, the known bugs that explain the numbers, the laws that are broken, and what it does otherwise."""
    laws, ways = (one.law for one in case.findings), (one.way for one in case.behaviour)
    return case.verdict, case.explained_by, frozenset(laws), frozenset(ways)


def published(name: str, ids: Collection[str]) -> dict[str, Reasons]:
    """Those of these cases in the report of a framework."""
    return {case.id: reasons(case) for case in _cases(name) if case.id in ids}


def telling(name: str) -> list[str]:
    """Few cases of the report of a framework that together show all of it: each workload, backend in each precision,
    number of ranks and of micro-batches, way to be resumed, law, and each of the reasons."""
    left = {case.id: set(_shown(case)) for case in _cases(name)}
    found = []
    while any(left.values()):
        found.append(max(left, key=lambda id: len(left[id])))
        left = {id: shown - left[found[-1]] for id, shown in left.items()}
    return found


def _shown(case: CaseRecord) -> Iterator[tuple[object, ...]]:
    yield "workload", case.workload
    yield "backend", case.backend, case.precision
    yield "ranks", case.world_size
    yield "micro-batches", case.layout, case.accumulation
    yield "resumed", case.resumed_at, case.resumed
    yield "reasons", reasons(case)
    yield from (("law", law) for law in case.laws)


@cache
def _cases(name: str) -> list[CaseRecord]:
    """Those that have a verdict in the report of a framework."""
    found = read_results(REPORTS / f"{name.replace('_', '-')}.jsonl").cases
    return [case for case in found if case.verdict not in NONE]
