"""Verdicts of cases with their reasons and behaviours, from a run and from a published report."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Collection, Iterable, Iterator
from functools import cache
from pathlib import Path

from conformance.results import read_results
from conformance.results.result_lines import CaseRecord

REPORTS = Path(__file__).parents[2] / "reports"
#: Verdicts of cases that did not run.
NONE = ("UNSUPPORTED", "UNAVAILABLE")


def judged_by_command(
    folder: Path, target: str, cases: Iterable[str], processes: int | None = None
) -> list[CaseRecord]:
    """The cases with a verdict, by `conformance run`: all, or these; in one process per core,
    or in ``processes``."""
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
    """The verdict, the known bugs that explain the numbers, the broken laws, and the behaviours."""
    laws, ways = (one.law for one in case.findings), (one.way for one in case.behaviour)
    return case.verdict, case.explained_by, frozenset(laws), frozenset(ways)


def published(name: str, ids: Collection[str]) -> dict[str, Reasons]:
    """The reasons of these cases in a framework's report."""
    return {case.id: reasons(case) for case in _cases(name) if case.id in ids}


def telling(name: str) -> list[str]:
    """A few cases of a framework's report that together cover it: each workload, backend in each precision,
    number of ranks and of micro-batches, way of resuming, law, and reason."""
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
    """The cases with a verdict in a framework's report."""
    found = read_results(REPORTS / f"{name.replace('_', '-')}.jsonl").cases
    return [case for case in found if case.verdict not in NONE]
