"""Runs the suite with pytest for the command line, shows progress, and appends each result to the results file."""

from __future__ import annotations

import json
import os
import shlex
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from threading import Event, Thread
from time import monotonic
from typing import Any

import pytest
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Task as ProgressTask
from rich.text import Text

from conformance import suite
from conformance.cli.exits import ERRORS
from conformance.cli.files import RunFolder
from conformance.cli.unfinished_runs import Earlier
from conformance.laws.law import laws
from conformance.oracle.faults import KNOWN
from conformance.report.grouping import tally
from conformance.report.terminal import render_notes
from conformance.report.text import duration
from conformance.results import ResultsError, ResultsWriter
from conformance.results.plain import record
from conformance.results.result_lines import NOT_CONFORMING, PASSED, CaseRecord, Header, LawText
from conformance.runner.system import child
from conformance.suite.hooks import FINISHED, SERVERS, SlowPath
from conformance.suite.items import BadInput
from conformance.suite.options import arguments, sendable
from conformance.suite.servers import Servers
from conformance.workloads.data_sets import SEED

SUITE = Path(suite.__file__).parent
PAUSE = 10.0
"""Seconds between two lines of progress."""

# Keeps the current folder, and a `types.py` in it, off the import path of a starting worker. Workers ignore signals to
# the whole group: this process ends them. A worker whose front is killed ends at once, or it would only print that its
# connection is lost. Its modules come later, from the front's import path.
_START_OF_WORKER = (
    "import sys; sys.path[:] = filter(None, sys.path); import signal; "
    "[signal.signal(number, lambda *_: None) for number in (signal.SIGTERM, signal.SIGHUP)]; "
    "import runpy; runpy.run_path({child!r})['die_with_parent']({front}); exec(sys.argv[-1])"
)
_HARNESS = "the harness failed: "


class _Left(TimeRemainingColumn):
    """The time left; nothing during collection, while the number of cases is unknown."""

    def render(self, task: ProgressTask) -> Text:
        return Text() if task.total is None else Text.assemble("left ", super().render(task))


class Engine:
    """One run.

    Attributes:
        recorded, planned: how many cases the results file has, and should have.
        bad_input: errors in the command line, one line each; if there are any, nothing ran.
        failures: failures of the harness, one line each.
        interrupted: the user stopped the run.
    """

    def __init__(
        self,
        folder: RunFolder,
        command: str,
        machine: Mapping[str, Any],
        sources: Mapping[str, Mapping[str, str]],
        console: Console,
        servers: Servers | None = None,
        earlier: Earlier | None = None,
        *,
        begin: Callable[[], None] = lambda: None,
        quiet: bool = False,
    ) -> None:
        """
        Args:
            machine, sources: go into the header.
            servers: run the cases; None: on this machine only.
            earlier: an earlier run whose finished cases are kept, except those of changed trainers.
            begin: called once there are cases to run; raises OSError.
            quiet: show no progress and no notes.
        """
        self._folder, self._command = folder, command
        self._machine, self._sources = machine, sources
        self._console, self._servers, self._earlier = console, servers, earlier
        self._finished = [[case.target, case.id] for case in earlier.kept] if earlier else []
        self._writer: ResultsWriter | None = None
        self._begin, self._quiet = begin, quiet
        # Not `console.is_terminal`: FORCE_COLOR makes it true, and a pipe must get no cursor moves.
        self._has_bar = not quiet and console.file.isatty()
        self._bar = Progress(
            TextColumn("{task.description}"), BarColumn(bar_width=20), MofNCompleteColumn(), TimeElapsedColumn(),
            _Left(), TextColumn("{task.fields[counts]}"),
            console=console, transient=True, disable=not self._has_bar,
        )  # fmt: skip
        self._task = self._bar.add_task("collecting cases", total=None, counts="")
        self._counts: Counter[str] = Counter()
        self._notes: list[str] = []
        self._begun_again: set[str] = set()
        self.planned = 0
        self.bad_input: list[str] = []
        self.failures: list[str] = []
        self.interrupted = False

    @property
    def recorded(self) -> int:
        return self._counts.total()

    def run(self, trainers: Sequence[str], processes: int, options: Mapping[str, Any]) -> None:
        """Run the suite, and write the results file and requested traces. ``options``: values for all of
        `conformance.suite.options`."""
        command = ["-c", str(SUITE / "pytest.ini"), "--rootdir", str(SUITE), "--assert=plain"]
        # Without pytest's folder for temporary files, which may belong to another user and outlives the run.
        for plugin in ("conformance.suite.hooks", "xdist.plugin", "no:cacheprovider", "no:terminal", "no:tmpdir"):
            command += ["-p", plugin]
        command += _workers(processes) if processes > 1 else ()
        # Some cases take many times longer: no case may wait for one of them while a worker is idle.
        command += ["--maxschedchunk", "1"]
        command += [*(f"--trainer={sendable(trainer)}" for trainer in trainers), *arguments(options)]
        with self._bar, self._lines(), _undisturbed():
            try:
                code = pytest.main([*command, str(SUITE / "test_conformance.py")], plugins=[self])
            except KeyboardInterrupt:
                # The second interrupt, while the run was ending after the first one.
                self.interrupted, code = True, pytest.ExitCode.INTERRUPTED
        if self._writer is not None:
            with suppress(pytest.exit.Exception), self._writing():
                self._writer.close()
        ended = [pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERRUPTED]
        if self._writer is not None:
            ended.append(pytest.ExitCode.NO_TESTS_COLLECTED)  # all had finished earlier
        if code not in ended and not self.failures and not self.bad_input:
            self.failures.append(f"pytest ended with {pytest.ExitCode(code).name}")

    @contextmanager
    def _lines(self) -> Iterator[None]:
        """Without a bar, print a line with the progress now and then: a silent job looks hung."""
        if self._quiet or self._has_bar:
            yield
            return
        ended, start = Event(), monotonic()
        # pytest replaces standard output while a test runs.
        out = os.dup(1)

        def tell() -> None:
            passed, failed = (sum(self._counts[one] for one in of) for of in (PASSED, NOT_CONFORMING))
            count = f"{self.recorded} of {self.planned}, {passed} passed, {failed} failed, " if self.planned else ""
            task, seconds = self._bar.tasks[self._task], duration(monotonic() - start)
            with suppress(OSError):
                os.write(out, f"{task.description}: {count}{seconds}\n".encode(self._console.encoding, ERRORS))

        def keep_telling() -> None:
            is_telling = False
            while not ended.wait(PAUSE):
                tell()
                is_telling = True
            if is_telling:
                # The last line would be out of date.
                tell()

        thread = Thread(target=keep_telling, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            os.close(out)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Stop the run if the results file cannot be written."""
        try:
            yield
        except (OSError, ResultsError) as error:
            why = f"cannot write {self._folder.own}: {error.strerror}" if isinstance(error, OSError) else str(error)
            # The footer fails after a case for the same reason.
            if why not in self.failures:
                self.failures.append(why)
            pytest.exit(why)

    @pytest.hookimpl
    def pytest_keyboard_interrupt(self) -> None:
        self.interrupted = True

    @pytest.hookimpl
    def pytest_configure(self, config: pytest.Config) -> None:
        if self._servers is not None:
            config.stash[SERVERS] = self._servers
        config.stash[FINISHED] = self._finished

    @pytest.hookimpl
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._start([item.nodeid for item in session.items])

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        if self._writer is None:
            self._start(ids)

    @pytest.hookimpl
    def pytest_warning_recorded(self, warning_message: warnings.WarningMessage) -> None:
        # Every worker reports it.
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
            self._record(record(CaseRecord, json.loads(result)))
        elif report.failed:
            self.failures.append(f"{_case_of(report.nodeid)}: {_in_one_line(report)}")

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str, report: Any, sched: Any) -> None:
        """Run a case again after its worker was killed, perhaps for another reason. The second time counts."""
        if crashitem not in self._begun_again:
            self._begun_again.add(crashitem)
            sched.mark_test_pending(crashitem)
            report.outcome = "rerun"
        else:
            report.longrepr = (
                "the worker process of this case was killed twice, perhaps because memory ran out; the same command "
                "with --resume runs the case again"
            )

    def _start(self, ids: Sequence[str]) -> None:
        """Start the results file, unless there is nothing to run: a wrong call keeps earlier results."""
        earlier = self._earlier
        self.planned = planned = len(ids) + len(self._finished)
        if not planned or any(BadInput.MARK in id for id in ids):
            return
        # A trainer that has changed may have other cases.
        if earlier is not None and not earlier.changed and planned != earlier.results.header.planned:
            was = f"it planned {earlier.results.header.planned} cases, and this run plans {planned}"
            self.bad_input.append(f"cannot resume {earlier.file}: {was}; run again without --resume")
            pytest.exit(self.bad_input[-1])
        if not self._quiet:
            render_notes(self._notes, self._console)
        self._bar.update(self._task, description="judging cases", total=planned)
        header = Header(
            tool="trainer-conformance",
            version=version("trainer-conformance"),
            started=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            command=self._command,
            planned=planned,
            seed=SEED,
            machine=dict(self._machine),
            sources={trainer: dict(files) for trainer, files in self._sources.items()},
            notes=tuple(self._notes),
            laws=tuple(LawText(law.id, law.level, law.says) for law in laws()),
            bugs={fault.name: fault.text for fault in KNOWN},
        )
        with self._writing():
            self._writer = ResultsWriter(self._folder.own, header)
            self._begin()
        if earlier is not None:
            for case in earlier.kept:
                self._record(case)
            if earlier.file != self._folder.results:
                earlier.file.unlink(missing_ok=True)

    def _record(self, case: CaseRecord) -> None:
        assert self._writer is not None
        with self._writing():
            self._writer.case(case)
        self._counts[case.verdict] += 1
        counts = " ".join(f"{look.glyph} {count}" for look, count in tally(self._counts.elements()))
        self._bar.update(self._task, advance=1, counts=counts)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Keep out pytest plugins and options of the user's own tests."""
    before, arguments_before = dict(os.environ), sys.argv
    # xdist sends them to its workers, and can send UTF-8 only.
    sys.argv = sys.argv[:1]
    os.environ.pop("PYTEST_ADDOPTS", None)
    os.environ.pop("PYTEST_PLUGINS", None)
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    try:
        yield
    finally:
        sys.argv = arguments_before
        os.environ.clear()
        os.environ.update(before)


def _workers(processes: int) -> Sequence[str]:
    """xdist's options for this many workers."""
    start = _START_OF_WORKER.format(child=os.path.normpath(child.__file__), front=os.getpid())
    python = shlex.join([os.path.normpath(sys.executable), "-u", "-c", start])
    return "--dist", "load", "--tx", f"{processes}*popen//python={python}"


def _case_of(nodeid: str) -> str:
    """The id of a case, with its trainer if there are several trainers."""
    return nodeid.partition("test_case[")[2].removesuffix("]") or nodeid


def _in_one_line(report: pytest.TestReport | pytest.CollectReport) -> str:
    """The error in one line."""
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is None:
        return _last_line(report.longreprtext)
    # As pytest names the exception of `pytest.fail`.
    return str(crash.message).splitlines()[0].removeprefix("Failed: ").removeprefix(_HARNESS)


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip().removeprefix(_HARNESS) if lines else "no message"
