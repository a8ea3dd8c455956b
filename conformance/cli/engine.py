"""Drives pytest over the suite for the command line, with a progress bar, and appends the results as they come."""

from __future__ import annotations

import os
import platform
import shlex
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from conformance import suite
from conformance.adapter.loading import reference_names, stated
from conformance.laws.law import laws
from conformance.report.terminal import render_notes
from conformance.results import ResultsWriter
from conformance.results.plain import record
from conformance.results.records import CaseRecord, Header, LawText
from conformance.suite.hooks import SERVERS
from conformance.suite.items import BadInput
from conformance.suite.options import arguments
from conformance.suite.servers import Servers, SlowPath
from conformance.workloads.multivariate import SEED

SUITE = Path(suite.__file__).parent
# Keeps the current folder, and a `types.py` in it, off the import path of a worker that is about to start.
_START_OF_WORKER = "import sys; sys.path[:] = filter(None, sys.path); exec(sys.argv[-1])"
_HARNESS = "the harness failed: "


class Engine:
    """One run.

    Attributes:
        recorded, planned: cases that are in the results file, and that should be.
        bad_input: mistakes in the command line, one line each; if there are any, nothing ran.
        failures: failures of the harness itself, one line each.
        interrupted: the user stopped the run.
    """

    def __init__(self, results: Path, command: str, console: Console, servers: Servers | None = None) -> None:
        """``servers``: run the cases there, if not on this machine alone."""
        self._results, self._command, self._console, self._servers = results, command, console, servers
        self._writer: ResultsWriter | None = None
        self._bar = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
            TextColumn("{task.fields[counts]}"), console=console, transient=True, disable=not console.is_terminal,
        )  # fmt: skip
        self._task = self._bar.add_task("collecting cases", total=None, counts="")
        self._counts: Counter[str] = Counter()
        self._notes: list[str] = []
        self.planned = 0
        self.bad_input: list[str] = []
        self.failures: list[str] = []
        self.interrupted = False

    @property
    def recorded(self) -> int:
        return self._counts.total()

    def run(self, trainers: Sequence[str], processes: int, options: Mapping[str, Any]) -> None:
        """Run the suite and write the results file, and traces if asked for. ``options`` have values for all of
        `conformance.suite.options`.
        """
        command = ["-c", str(SUITE / "pytest.ini"), "--rootdir", str(SUITE), "--assert=plain"]
        for plugin in ("conformance.suite.hooks", "xdist.plugin", "no:cacheprovider", "no:terminal"):
            command += ["-p", plugin]
        command += _workers(processes) if processes > 1 else ()
        # Some cases take many times as long as others; no case may wait for one of these while workers are idle.
        command += ["--maxschedchunk", "1"]
        command += [*(f"--trainer={trainer}" for trainer in trainers), *arguments(options)]
        with self._bar, _undisturbed():
            code = pytest.main([*command, str(SUITE / "test_conformance.py")], plugins=[self])
        if self._writer is not None:
            with suppress(pytest.exit.Exception), self._writing():
                self._writer.close()
        ended = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERRUPTED)
        if code not in ended and not self.failures and not self.bad_input:
            self.failures.append(f"pytest ended with {pytest.ExitCode(code).name}")

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Stop the run when the results file cannot be written."""
        try:
            yield
        except OSError as error:
            self.failures.append(f"cannot write {self._results}: {error.strerror}")
            pytest.exit(self.failures[-1])

    @pytest.hookimpl
    def pytest_keyboard_interrupt(self) -> None:
        self.interrupted = True

    @pytest.hookimpl
    def pytest_configure(self, config: pytest.Config) -> None:
        if self._servers is not None:
            config.stash[SERVERS] = self._servers

    @pytest.hookimpl
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._start([item.nodeid for item in session.items])

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        if self._writer is None:
            self._start(ids)

    @pytest.hookimpl
    def pytest_warning_recorded(self, warning_message: warnings.WarningMessage) -> None:
        # Every worker reports it; keep one.
        if isinstance(warning_message.message, SlowPath) and (note := str(warning_message.message)) not in self._notes:
            self._notes.append(note)

    @pytest.hookimpl
    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.failures.append(_in_one_line(report))

    @pytest.hookimpl
    def pytest_internalerror(self, excrepr: Any) -> None:
        self.failures.append(_last_line(str(excrepr)))

    @pytest.hookimpl
    def pytest_runtest_logreport(self, report: Any) -> None:
        result = getattr(report, "conformance", None)
        if getattr(report, "bad_input", None):
            self.bad_input.append(report.bad_input)
        elif result is not None and self._writer is not None:
            case = record(CaseRecord, result)
            with self._writing():
                self._writer.case(case)
            self._counts[case.verdict] += 1
            counts = "  ".join(f"{count} {verdict}" for verdict, count in sorted(self._counts.items()))
            self._bar.update(self._task, advance=1, counts=counts)
        elif report.failed:
            self.failures.append(f"{report.nodeid}: {_in_one_line(report)}")

    def _start(self, ids: Sequence[str]) -> None:
        """Begin the results file, unless there is nothing to run: a mistaken call keeps earlier results."""
        self.planned = planned = len(ids)
        if not ids or any(BadInput.MARK in id for id in ids):
            return
        render_notes(self._notes, self._console)
        self._bar.update(self._task, description="judging cases", total=planned)
        header = Header(
            tool="trainer-conformance",
            version=version("trainer-conformance"),
            started=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            command=self._command,
            planned=planned,
            seed=SEED,
            machine=machine(() if self._servers is None else self._servers.hosts),
            notes=tuple(self._notes),
            laws=tuple(LawText(law.id, law.level, law.says) for law in laws()),
        )
        with self._writing():
            self._writer = ResultsWriter(self._results, header)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Keep out pytest plugins and options that users have for their own tests."""
    before = dict(os.environ)
    os.environ.pop("PYTEST_ADDOPTS", None)
    os.environ.pop("PYTEST_PLUGINS", None)
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _workers(processes: int) -> Sequence[str]:
    """xdist's options for this many workers."""
    python = shlex.join([os.path.normpath(sys.executable), "-u", "-c", _START_OF_WORKER])
    return "--dist", "load", "--tx", f"{processes}*popen//python={python}"


def machine(hosts: Sequence[str] = ()) -> dict[str, object]:
    """What a result depends on besides the trainer. ``hosts``: where ranks run, if not only here."""
    found: dict[str, object] = {
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "cpus": os.cpu_count(),
    }
    if hosts:
        found["hosts"] = ", ".join(hosts)
    declarations = [stated(name) for name in reference_names()]
    required = [package for declaration in declarations if declaration for package in declaration.requires]
    for package in dict.fromkeys(["torch", "numpy", *required]):
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def _in_one_line(report: pytest.TestReport | pytest.CollectReport) -> str:
    """What went wrong, in one line."""
    crash = getattr(report.longrepr, "reprcrash", None)
    return _last_line(report.longreprtext) if crash is None else str(crash.message).splitlines()[0]


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip().removeprefix(_HARNESS) if lines else "no message"
