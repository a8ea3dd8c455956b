"""Runs a command with a recorder in each of its processes, and judges their records as they come."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from errno import EFBIG
from pathlib import Path
from time import monotonic
from typing import TypeAlias

import conformance
from conformance.report.command import shown
from conformance.watch import supervisor
from conformance.watch.judging.findings import Findings, said
from conformance.watch.judging.watch_judge import Judge
from conformance.watch.ledger import Ledger
from conformance.watch.processes import Trainers
from conformance.watch.reading import Reader
from conformance.watch.recording.settings import Settings

GRACE = 30.0
"""Seconds for a command to end after a signal."""

_PAUSE = 0.2
"""Seconds between two reads of new records."""

_AFTERWARDS = 5.0
"""Seconds for which other processes may outlive the command."""


_Lines: TypeAlias = Mapping[int, Sequence[str]]
"""The command lines of processes."""


class CannotStart(Exception):
    """The command cannot be started. `str()` is the reason."""


class NoRoom(Exception):
    """Nothing can be recorded. `str()` is one line: why, and what to do."""


@dataclass(frozen=True)
class Watched:
    """code: the exit code of the command; negative for a signal; None if unknown. by: the signal to us that ended it.
    was_stopped: `see` ended it. was_killed: it exceeded `grace`."""

    code: int | None
    by: signal.Signals | None
    was_stopped: bool
    was_killed: bool
    findings: Findings


def watch(
    command: Sequence[str],
    see: Callable[[Judge], bool] = lambda judge: False,
    settings: Settings = Settings(),  # noqa: B008  # is frozen
    grace: float = GRACE,
    output: int | None = None,
) -> Watched:
    """Run a command to its end. `see` is called repeatedly with the judge; the command is ended once it returns True.
    Signals go to the command, which then has `grace` seconds to end, or until the second signal. output: a descriptor
    for the command's standard output; None: our own.

    Raises CannotStart, and NoRoom if nothing can be recorded.
    """
    judge = Judge()
    with place(keeps=True) as (folder, ledger):
        reader = Reader(folder, judge)
        env = {**environment(str(folder), os.environ), **settings.variables()}
        was_stopped = False
        with _Signals() as signals, _supervised(command, env, grace, folder, output) as (process, report):
            came = signals.came
            signals.pass_to(process)
            trainers = Trainers(process.pid, folder)
            while not select.select([report], [], [], _PAUSE)[0]:
                trainers.look()
                reader.read()
                if not was_stopped and not came and see(judge):
                    was_stopped = True
                    process.send_signal(supervisor.END)
            ended = _report(report)
            still = _left(trainers, report)
            has_torch = True
            # The reader reports a ledger that the script has truncated.
            with suppress(OSError):
                has_torch = ledger.has_torch
                if ledger.is_over:
                    judge.findings.lack(said("ledger-written"))
                ledger.end()
        by = next((number for number in came if number in supervisor.ENDING), None)
        code: int | None = ended.get("code")
        is_whole = reader.finish() and code == 0 and not still
        if not was_stopped:
            _judge_end(judge, code, trainers.unreached, still, has_torch=has_torch)
        try:
            judge.finish(is_whole=is_whole)
        except Exception as error:
            # Records may be damaged. Findings so far stay.
            judge.findings.lack(said("records-unjudged", reason=f"{type(error).__name__}: {error}"))
        return Watched(code, by, was_stopped, bool(ended.get("killed")), judge.findings)


def _left(trainers: Trainers, report: int) -> _Lines:
    """The command lines of processes that outlive the command and may train."""
    deadline = monotonic() + _AFTERWARDS
    while not select.select([report], [], [], _PAUSE)[0]:
        if not (still := trainers.look()) or monotonic() > deadline:
            return still
    return {}


def _judge_end(judge: Judge, code: int | None, unreached: _Lines, still: _Lines, *, has_torch: bool) -> None:
    """Adds a doubt for each unseen process, and for a failed command."""
    findings = judge.findings
    for pid, line in unreached.items():
        findings.lack(said("unreached", pid=pid, command=shown(line)))
    for pid, line in still.items():
        findings.lack(said("outlived", pid=pid, command=shown(line)))
    if code is None:
        findings.lack(said("supervisor-killed"))
    elif code:
        findings.lack(said("command-failed", ending=_ending(code)))
    elif not has_torch and not unreached:
        findings.lack(said("no-torch"))


def _ending(code: int) -> str:
    return f"exit code {code}" if code > 0 else f"ended by {_signal(-code)}"


def _signal(number: int) -> str:
    """Its name; real-time signals have a number only."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


@contextmanager
def place(*, keeps: bool = False) -> Iterator[tuple[Path, Ledger]]:
    """A folder for records, with a ledger, during the block. keeps: as in `Ledger`. Raises NoRoom."""
    with ExitStack() as stack:
        try:
            temporary = tempfile.TemporaryDirectory(prefix="conformance-watch-", ignore_cleanup_errors=True)
            folder = Path(stack.enter_context(temporary))
            ledger = Ledger.made(folder, keeps=keeps)
        except OSError as error:
            way_out = "lift the limit on the size of files" if error.errno == EFBIG else "set TMPDIR to another folder"
            raise NoRoom(f"nothing can be recorded in {tempfile.gettempdir()}: {error.strerror}; {way_out}") from error
        yield folder, ledger


@contextmanager
def _supervised(
    command: Sequence[str], env: Mapping[str, str], grace: float, folder: Path, output: int | None
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """The process that runs the command, and the pipe on which it reports its end."""
    report, write = os.pipe()
    os.set_inheritable(write, True)
    script = [sys.executable, "-I", "-S", str(Path(supervisor.__file__)), str(os.getpid()), str(write), str(grace)]
    try:
        try:
            # The supervisor inherits this: a signal could end it before it blocks signals itself.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, supervisor.SIGNALS)
            words = [*script, str(folder), *command]
            process = subprocess.Popen(words, env=env, stdout=output, close_fds=False)
        except OSError as error:
            raise CannotStart(f"{sys.executable}: {error.strerror}") from error
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            os.close(write)
        with process:
            try:
                yield process, report
            except BaseException:
                # Wait for the command even after an error here.
                select.select([report], [], [])
                raise
            finally:
                process.send_signal(supervisor.END)
    finally:
        os.close(report)


def _report(report: int) -> dict[str, int | None]:
    """How the command ended; {} if the supervisor was killed. Raises CannotStart."""
    text = b""
    while not text.endswith(b"\n") and (more := os.read(report, 4096)):
        text += more
    found: dict[str, int | None] = json.loads(text) if text else {}
    if (number := found.get("errno")) is not None:
        raise CannotStart(os.strerror(number))
    return found


class _Signals:
    """Passes signals on to the supervisor within its block; earlier ones wait for it.

    came: all signals. They are not blocked: a signal that one thread blocks goes to another one.
    """

    def __init__(self) -> None:
        self.came: list[signal.Signals] = []
        self._waiting: deque[int] = deque()
        self._process: subprocess.Popen[bytes] | None = None
        # Signals that `nohup` ignores stay ignored.
        heard = [one for one in supervisor.PASSED_ON if signal.getsignal(one) is not signal.SIG_IGN]
        self._before = {number: signal.getsignal(number) for number in heard}

    def __enter__(self) -> _Signals:
        for number in self._before:
            signal.signal(number, self._take)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def pass_to(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._send()

    def _take(self, number: int, _: object) -> None:
        self.came.append(signal.Signals(number))
        self._waiting.append(number)
        self._send()

    def _send(self) -> None:
        # A handler may interrupt this loop: each signal is taken out once.
        with suppress(IndexError):
            while self._process is not None:
                self._process.send_signal(supervisor.TOLD + self._waiting.popleft())


def environment(folder: str, given: Mapping[str, str]) -> dict[str, str]:
    """`given`, and the variables that start a recorder in each Python process."""
    home = Path(conformance.__file__).parent
    inject = str(home / "watch" / "inject")
    path = os.pathsep.join(filter(None, [inject, given.get("PYTHONPATH", "")]))
    return {**given, "PYTHONPATH": path, "CONFORMANCE_WATCH": folder, "CONFORMANCE_WATCH_HOME": str(home.parent)}
