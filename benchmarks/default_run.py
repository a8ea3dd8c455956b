"""Wall time of `conformance run` over the reference trainers of single and ddp, and where the time goes.

    python benchmarks/default_run.py [--processes 2] [--repetitions 1]

It drives the engine that the command drives, and reads the times that pytest takes of each case:

- start: pytest and its workers start, import torch, start the trainers' servers and collect the cases;
- run: the ranks of all cases (`seconds` in the results file), over the number of workers;
- judge: the rest of each test: building the case, the verdict, the record;
- between: pytest between the cases, and a worker that waits for the last case of another;
- report: the results file is read again and rendered.

The processor time beneath the table says what the run would take of idle cores, should others be at work.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import time
from typing import Any

from measuring import TIME_LIMIT, show
from rich.console import Console

from conformance.cli.engine import Engine
from conformance.report.html import render_html
from conformance.report.terminal import render_terminal
from conformance.results import read_results

BACKENDS = ("single", "ddp")
TARGET = 60


class TimedEngine(Engine):
    """Keeps the reports of all cases that were run."""

    reports: list[Any]

    def pytest_runtest_logreport(self, report: Any) -> None:
        super().pytest_runtest_logreport(report)
        if getattr(report, "conformance", None) and "seconds" in report.conformance:
            self.reports.append(report)


def main() -> None:
    parser = argparse.ArgumentParser(description="Wall time of `conformance run`, and where it goes.")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="default: one a core")
    parser.add_argument("--repetitions", type=int, default=1, help="default: %(default)s")
    options = parser.parse_args()
    runs = [run(options.processes) for _ in range(options.repetitions)]
    processor = sum(os.times()[:4]) / options.repetitions
    walls = [wall for wall, *_ in runs]
    # The run of the median wall time, so that its parts add up.
    wall, parts, cases, verdicts = min(runs, key=lambda found: abs(found[0] - median(walls)))
    total = ("all", f"{wall:.1f}", "100 %", "")
    rows = [(name, f"{part:.1f}", f"{part / wall:.0%}", f"{part / cases * 1e3:.0f}") for name, part in parts.items()]
    show(
        f"conformance run --backend single --backend ddp: {cases} cases, {options.processes} at a time",
        ("", "seconds", "share", "ms a case"),
        [rows, [total]],
        f"Target: under {TARGET} s on 2 cores. Wall time of all repetitions: "
        f"{', '.join(f'{found:.1f}' for found in walls)} s; processor time of one: {processor:.1f} s.\n"
        f"{verdicts}.",
    )


def run(processes: int) -> tuple[float, dict[str, float], int, str]:
    """Wall time, its parts, the number of cases that ran, and the verdicts in words."""
    console = Console(stderr=True)
    began = time()
    with TemporaryDirectory() as folder, open(os.devnull, "w") as nowhere:
        path = Path(folder, "results.jsonl")
        engine = TimedEngine(path, "benchmarks/default_run.py", console)
        engine.reports = []
        engine.run([], processes, {"backend": BACKENDS, "case": (), "time_limit": TIME_LIMIT, "traces": None})
        if engine.failures or engine.bad_input:
            raise AssertionError(engine.failures + engine.bad_input)
        ended = time()
        results = read_results(path)
        report = path.with_name("report.html")
        render_html(results, report)
        render_terminal(results, Console(file=nowhere), report)
    reported = time()
    verdicts = ", ".join(f"{count} {verdict}" for verdict, count in sorted(results.counts.items()))
    parts = dict(shares(engine.reports, processes, began, ended)) | {"report": reported - ended}
    return reported - began, parts, len(engine.reports), verdicts


def shares(reports: list[Any], processes: int, began: float, ended: float) -> Iterator[tuple[str, float]]:
    """Seconds of wall time for each part of the engine's work."""
    first = min(report.start for report in reports)
    running = sum(report.conformance["seconds"] for report in reports) / processes
    testing = sum(report.duration for report in reports) / processes
    yield "start", first - began
    yield "run", running
    yield "judge", testing - running
    yield "between", ended - first - testing


if __name__ == "__main__":
    main()
