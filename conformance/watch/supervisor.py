"""Starts a command, and ends all its processes when the watch requests it or dies.

A separate process that imports only the standard library, so it outlives a watch that is killed. Signals of a terminal
reach the watch, this process and the command. It passes on signals that only the watch received.

    python -I -S supervisor.py WATCH REPORT GRACE FOLDER COMMAND ...

WATCH: process number of the watch. REPORT: descriptor of a pipe, which gets one line of JSON, {"errno": N} if the
command cannot be started, else {"code": N, "killed": B}; closed when the last process of the command has ended.
GRACE: seconds. FOLDER: removed if the watch dies.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from time import monotonic

ENDING = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT}
"""Signals after which the command has GRACE seconds to end. A second one kills it."""
PASSED_ON = {*ENDING, signal.SIGUSR1, signal.SIGUSR2}
END = signal.SIGRTMIN
"""From the watch: end the command."""
_ORPHANED = signal.SIGRTMIN + 1
"""From the kernel: the watch has died."""
TOLD = signal.SIGRTMIN + 2
"""From the watch: it received signal N, sent as TOLD + N. Unlike other signals, real-time ones queue."""
SIGNALS = {*PASSED_ON, signal.SIGCHLD, END, _ORPHANED, *(TOLD + number for number in PASSED_ON)}
_ORPHANS = 5.0
"""Seconds for the command to end if the watch was killed."""
_KILLING = 5.0
"""Seconds to kill the command. A process that survives this cannot be killed."""
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


class Supervisor:
    """Watches over a running command. code: its exit code as in `subprocess`, None until it ends. has_killed: it took
    too long to end. is_orphaned: the watch has died."""

    def __init__(self, process: subprocess.Popen[bytes], grace: float) -> None:
        self._process, self._grace = process, grace
        self.code: int | None = None
        self.has_killed = self.is_orphaned = False
        self._deadline: float | None = None
        self._asked: tuple[int, set[int]] = signal.SIGTERM, set()
        self._group = os.getpgid(process.pid)
        self._direct, self._told = Counter[int](), Counter[int]()

    def run(self) -> None:
        """Returns when the command has ended; after a request to end, when all its processes have ended."""
        while True:
            self._reap()
            if self.code is not None:
                if self._deadline is None or not descendants(os.getpid()):
                    return
                self._pass_on()
            left = None if self._deadline is None else self._deadline - monotonic()
            if left is not None and left <= -_KILLING:
                return
            if left is not None and left <= 0:
                self._kill()
                continue
            info = _next(left)
            if info is None or info.si_signo == signal.SIGCHLD:
                continue
            number = info.si_signo
            if self.is_orphaned and number == _ORPHANED:
                # The kernel sends one signal for each thread of the watch.
                continue
            if number in (END, _ORPHANED):
                self.is_orphaned = number == _ORPHANED
                self._asked = signal.SIGTERM, set()
                self._pass_on()
                # If the watch was killed, nobody waits for these processes.
                self._deadline = monotonic() + (min(self._grace, _ORPHANS) if self.is_orphaned else self._grace)
                continue
            if number > TOLD:
                number -= TOLD
                self._told[number] += 1
                if self._told[number] <= self._direct[number]:
                    continue
                self._asked = number, set()
                self._pass_on()
            else:
                # The whole group received it, including the command.
                self._direct[number] += 1
                self._asked = number, {*self._reached()}
            if number in ENDING:
                self._deadline = monotonic() + (self._grace if self._deadline is None else 0)

    def adopt(self, report: int | None) -> None:
        """Adopts the processes that the command left, until the watch has inspected them. Closes the pipe when the last
        of them ends: all descendants are adopted, so only then this process has no children."""
        while not self.is_orphaned:
            if not self._reap() and report is not None:
                os.close(report)
                report = None
            info = _next(None)
            if info is None or info.si_signo == END:
                return
            self.is_orphaned = info.si_signo == _ORPHANED

    def _reached(self) -> Iterator[int]:
        """The targets of a signal: the command's group, as with a terminal, or all descendants once the command has
        ended. Parents come first, so a shell does not start its next command."""
        for pid in descendants(os.getpid()):
            # The process may have ended meanwhile.
            with suppress(ProcessLookupError):
                if self.code is not None or pid == self._process.pid or os.getpgid(pid) == self._group:
                    yield pid

    def _pass_on(self) -> None:
        """Sends the last requested signal to processes that have not received it."""
        number, have = self._asked
        for pid in self._reached():
            if pid not in have:
                have.add(pid)
                _send(pid, number)

    def _kill(self) -> None:
        self.has_killed = True
        for pid in descendants(os.getpid()):
            _send(pid, signal.SIGKILL)
        # Once their parents are gone, they become children of this process.
        _next(0.02)

    def _reap(self) -> bool:
        """Collects ended children. Returns whether any are left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if not pid:
                return True
            if pid == self._process.pid:
                self.code = self._process.returncode = os.waitstatus_to_exitcode(status)


def descendants(process: int) -> list[int]:
    """The living descendants of a process; parents come first."""
    parents: dict[int, list[int]] = {}
    for entry in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if entry.isdecimal():
            try:
                with open(f"/proc/{entry}/stat", "rb") as file:
                    state, parent, *_ = file.read().rpartition(b")")[2].split()
            except OSError:
                continue
            if state not in b"ZX":
                parents.setdefault(int(parent), []).append(int(entry))
    found = [process]
    for one in found:
        found += parents.get(one, [])
    return found[1:]


def _say(report: int, **what: int | None) -> None:
    os.write(report, json.dumps(what).encode() + b"\n")


def _send(pid: int, number: int) -> None:
    # The process may have ended meanwhile, or belong to another user.
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _next(seconds: float | None) -> signal.struct_siginfo | None:
    """The next signal; None after a timeout."""
    return signal.sigwaitinfo(SIGNALS) if seconds is None else signal.sigtimedwait(SIGNALS, max(seconds, 0))


def main(watch: str, report: str, grace: str, folder: str, *command: str) -> None:
    libc = ctypes.CDLL(None)
    os.set_inheritable(int(report), False)
    # An ignored signal, as under `nohup`, stays ignored: if blocked, it would be queued.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    heard = {number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN}
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS - heard)
    signal.pthread_sigmask(signal.SIG_BLOCK, heard)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        process = subprocess.Popen(
            command, close_fds=False, preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        )
    except OSError as error:
        _say(int(report), errno=error.errno or errno.EINVAL)
        return
    libc.prctl(_PR_SET_PDEATHSIG, int(_ORPHANED), 0, 0, 0)
    if os.getppid() != int(watch):
        # The watch died before the kernel was asked to report it.
        os.kill(os.getpid(), _ORPHANED)
    supervisor = Supervisor(process, float(grace))
    supervisor.run()
    if not supervisor.is_orphaned:
        _say(int(report), code=supervisor.code, killed=supervisor.has_killed)
        supervisor.adopt(int(report))
    if supervisor.is_orphaned:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
