"""Wall time of `conformance run` over the reference trainers of single and ddp, and where the time goes.

    python benchmarks/default_run.py [--processes 2] [--repetitions 1]

It runs the same engine as the command, and reads pytest's times of each case:

- start: pytest and its workers start, import torch, start the trainers' servers and collect the cases;
- run: the ranks of all cases (`seconds` in the results file), divided by the number of workers;
- judge: the rest of each test: building the case, the verdict, the record;
- between: pytest between the cases, and a worker that waits for the last case of another;
- report: the results file is read again and rendered.

The processor time below the table shows what the run would take on idle cores, if other work is running.
"""

from __future__ import annotations

import argparse
import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import time
from typing import Any

from measuring import TIME_LIMIT, show
from rich.console import Console

from conformance.cli.engine import Engine
from conformance.cli.files import RunFolder
from conformance.cli.versions import machine
from conformance.report.html import render_html
from conformance.report.terminal import render_terminal
from conformance.results import read_results

BACKENDS = ("single", "ddp")
TARGET = 60


class TimedEngine(Engine):
    """Keeps the pytest reports of all cases that ran, each with its seconds on the ranks."""

    timed: list[tuple[Any, float]]

    def pytest_runtest_logreport(self, report: Any) -> None:
        super().pytest_runtest_logreport(report)
        seconds = json.loads(getattr(report, "conformance", None) or "{}").get("seconds")
        if seconds is not None:
            self.timed.append((report, seconds))


def main() -> None:
    parser = argparse.ArgumentParser(description="Wall time of `conformance run`, and where it goes.")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="default: one per core")
    parser.add_argument("--repetitions", type=int, default=1, help="default: %(default)s")
    options = parser.parse_args()
    runs = [run(options.processes) for _ in range(options.repetitions)]
    processor = sum(os.times()[:4]) / options.repetitions
    walls = [wall for wall, *_ in runs]
    # The run with the median wall time, so its parts add up.
    wall, parts, cases, verdicts = min(runs, key=lambda found: abs(found[0] - median(walls)))
    total = ("all", f"{wall:.1f}", "100 %", "")
    rows = [(name, f"{part:.1f}", f"{part / wall:.0%}", f"{part / cases * 1e3:.0f}") for name, part in parts.items()]
    show(
        f"conformance run --backend single --backend ddp: {cases} cases, {options.processes} at a time",
        ("", "seconds", "share", "ms per case"),
        [rows, [total]],
        f"Target: under {TARGET} s on 2 cores. Wall time of all repetitions: "
        f"{', '.join(f'{found:.1f}' for found in walls)} s; processor time of one: {processor:.1f} s.\n"
        f"{verdicts}.",
    )


def run(processes: int) -> tuple[float, dict[str, float], int, str]:
    """Wall time, its parts, the number of cases that ran, and the verdicts as text."""
    console = Console(stderr=True)
    began = time()
    with TemporaryDirectory() as folder, open(os.devnull, "w") as nowhere:
        files = RunFolder(Path(folder))
        engine = TimedEngine(files, "benchmarks/default_run.py", machine(()), {}, console)
        engine.timed = []
        options = {"backend": BACKENDS, "case": (), "thorough": False, "time_limit": TIME_LIMIT, "traces": None}
        engine.run([], processes, options)
        if engine.failures or engine.bad_input:
            raise AssertionError(engine.failures + engine.bad_input)
        ended = time()
        results = read_results(files.own)
        render_html(results, files.report)
        render_terminal(results, Console(file=nowhere), files.report)
    reported = time()
    counts = Counter(case.verdict for case in results.cases)
    verdicts = ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items()))
    parts = dict(shares(engine.timed, processes, began, ended)) | {"report": reported - ended}
    return reported - began, parts, len(engine.timed), verdicts


def shares(timed: list[tuple[Any, float]], processes: int, began: float, ended: float) -> Iterator[tuple[str, float]]:
    """Seconds of wall time for each part of the engine's work."""
    first = min(report.start for report, _ in timed)
    running = sum(seconds for _, seconds in timed) / processes
    testing = sum(report.duration for report, _ in timed) / processes
    yield "start", first - began
    yield "run", running
    yield "judge", testing - running
    yield "between", ended - first - testing


if __name__ == "__main__":
    main()
