"""Drives pytest over the suite for the command line, with a progress bar, and appends the results as they come."""

from __future__ import annotations

import os
import platform
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from conformance.report import ResultsWriter
from conformance.workloads.multivariate import SEED

SUITE = Path(__file__).parent


class Engine:
    """One run. Afterwards ``bad_input`` and ``failures`` hold what went wrong, and ``recorded`` counts the cases."""

    def __init__(self, results: Path, command: str, console: Console) -> None:
        self._results, self._command = results, command
        self._writer: ResultsWriter | None = None
        self._bar = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
            TextColumn("{task.fields[counts]}"), console=console, transient=True,
        )  # fmt: skip
        self._task = self._bar.add_task("collecting cases", total=None, counts="")
        self._counts: Counter[str] = Counter()
        self.bad_input: list[str] = []
        self.failures: list[str] = []

    @property
    def recorded(self) -> int:
        return self._counts.total()

    def run(
        self,
        trainers: Sequence[str],
        backends: Sequence[str],
        cases: Sequence[str],
        time_limit: float,
        processes: int,
    ) -> None:
        """Run the suite. Raises ResultsError if the results file cannot be written."""
        arguments = [
            "-c",
            str(SUITE / "pytest.ini"),
            "--rootdir",
            str(SUITE),
            "-p",
            "no:cacheprovider",
            "-p",
            "no:terminal",
            "--assert=plain",
        ]
        arguments += ["--time-limit", str(time_limit), "-n", str(processes if processes > 1 else 0)]
        for option, values in (("--trainer", trainers), ("--backend", backends), ("--case", cases)):
            for value in values:
                arguments += [f"{option}={value}"]
        # Options that a user keeps for tests of his own would change what is collected here.
        os.environ.pop("PYTEST_ADDOPTS", None)
        with self._bar:
            code = pytest.main([*arguments, str(SUITE / "test_conformance.py")], plugins=[self])
        if self._writer is not None:
            self._writer.close()
        if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED) and not self.failures and not self.bad_input:
            self.failures.append(f"pytest ended with {pytest.ExitCode(code).name}")

    @pytest.hookimpl
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        if session.items:
            self._start(len(session.items))

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        if self._writer is None:
            self._start(len(ids))

    @pytest.hookimpl
    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.failures.append(_last_line(report.longreprtext))

    @pytest.hookimpl
    def pytest_internalerror(self, excrepr: Any) -> None:
        self.failures.append(_last_line(str(excrepr)))

    @pytest.hookimpl
    def pytest_runtest_logreport(self, report: Any) -> None:
        result = getattr(report, "conformance", None)
        if getattr(report, "bad_input", None):
            self.bad_input.append(report.bad_input)
        elif result is not None and self._writer is not None:
            self._writer.case(result)
            self._counts[result["verdict"]] += 1
            counts = "  ".join(f"{count} {verdict}" for verdict, count in sorted(self._counts.items()))
            self._bar.update(self._task, advance=1, counts=counts)
        elif report.failed:
            self.failures.append(f"{report.nodeid}: {_last_line(report.longreprtext)}")

    def _start(self, planned: int) -> None:
        self._bar.update(self._task, description="judging cases", total=planned)
        self._writer = ResultsWriter(
            self._results,
            {
                "tool": "trainer-conformance",
                "version": version("trainer-conformance"),
                "started": datetime.now(UTC).isoformat(timespec="seconds"),
                "command": self._command,
                "seed": SEED,
                "planned": planned,
                "machine": machine(),
            },
        )


def machine() -> dict[str, object]:
    """What a result depends on besides the trainer."""
    found: dict[str, object] = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
    }
    for package in ("torch", "numpy", "horovod", "accelerate", "lightning"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip() if lines else "no message"
