"""A rank that runs in a process forked by the harness."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from time import monotonic, time

from conformance.runner.case.member import LARGEST, RankMember, excerpt, may_begin
from conformance.runner.case.supervision import BUILD_LIMIT, rank_name
from conformance.runner.outcome import RankOutcome, describe_status, signal_name
from conformance.runner.rank.rank import Pipes
from conformance.runner.rank.reporting import DESCRIPTORS_LOST
from conformance.runner.system import protocol, stacks
from conformance.runner.system.child import HARNESS_FAILED, Child
from conformance.runner.system.descriptors import Descriptors, Known, Output, last_line, tail

_CHUNK = 1 << 16
# An older lock belongs to no rank of this run, whose locks are removed when their rank ends.
_BEGAN = time()


class RankProcess(RankMember):
    """A forked process, pipes for its notices and output, and files for evidence and stack that outlive it.

    Attributes:
        output: its standard output and error.
        unwritable: why the system refused to write its evidence, if it did.
    """

    def __init__(self, rank: int, descriptors: Descriptors, hold: int, become: Callable[[Pipes], int]) -> None:
        """``become``: called in the process. ``hold``: the pipe that closes when it may leave."""
        super().__init__(rank)
        self._notices, write = descriptors.pipe()
        os.set_blocking(self._notices, False)
        source, output = descriptors.pipe()
        self.output = Output(source)
        self._stack, self._file = descriptors.file(), descriptors.file()
        # The incomplete last lines of the notices and of the evidence.
        self._unread = self._half = b""
        self._read_to = 0
        self.unwritable: str | None = None
        self._is_limited = False
        self._locks: set[str] = set()
        self._waits_for: str | None = None
        self._leaves_running: str | None = None
        pipes = Pipes(self._file, write, hold, self._stack)

        def body() -> int:
            os.dup2(output, 1)
            os.dup2(output, 2)
            return become(pipes)

        self.child = Child(body)
        descriptors.close(write)
        descriptors.close(output)

    @property
    def has_exited(self) -> bool:
        return self.child.status is not None

    @property
    def is_building(self) -> bool:
        return bool(self._locks) or (self._waits_for is not None and _is_ours(self._waits_for))

    def fileno(self) -> int:
        return self._notices

    def read(self) -> bool:
        try:
            data = os.read(self._notices, _CHUNK)
        except BlockingIOError:
            return True
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in filter(None, lines):
            self._take(line)
        if not may_begin(self._unread):
            self._take(self._unread)
        # A trainer may write an endless line into the pipe.
        self._unread = self._unread[:_CHUNK]
        return bool(data)

    def look(self) -> None:
        """Read its evidence since the last call."""
        size = os.fstat(self._file).st_size
        if size < self._read_to:
            self._reject("has shrunk")
        elif size > LARGEST:
            self._reject(f"is larger than {LARGEST >> 20} MiB")
        if self.malformed is not None:
            return
        data = os.pread(self._file, size - self._read_to, self._read_to)
        self._read_to += len(data)
        *lines, self._half = (self._half + data).split(b"\n")
        for line in lines:
            self._add(line)
        if not may_begin(self._half):
            self._add(self._half)

    def outcome(self, first_failed: int | None) -> RankOutcome:
        self.look()
        # Only a process that was killed may leave half a line.
        if self._half and self.delivered:
            self._add(self._half)
        return super().outcome(first_failed)

    def _take(self, line: bytes) -> None:
        """Note a notice, or reject anything else that a trainer wrote into the pipe."""
        try:
            notice = protocol.decode(line)
        except (ValueError, RecursionError):
            notice = {}
        match notice:
            case {"event": "raised", "at": float()} | {"event": "started" | "finished"}:
                self._note(notice)
            case {"event": "unwritable", "reason": str(reason)}:
                self.unwritable = reason
            case {"event": "limited"}:
                self._is_limited = True
            case {"event": "locked", "path": str(path)}:
                self._locks.add(path)
            case {"event": "unlocked", "path": str(path)}:
                self._locks.discard(path)
            case {"event": "waits", "path": str() | None as path}:
                self._waits_for = path
            case {"event": "leaving", "waits_for": [str(), *_] as names}:
                self._leaves_running = ", ".join(map(str, names))
            case _:
                self._reject(f"has an invalid notice: {excerpt(line)}")

    def reap(self) -> None:
        """Note the end of the process, if it has ended, and read its last reports."""
        if not self.has_exited and self.child.poll() is not None:
            self._read_rest()
            self._fail(monotonic())

    def _read_rest(self) -> None:
        """Read up to a full pipe, but not forever: a process that it has started may continue to write."""
        for _ in range(2):
            self.read()

    def kill(self, because: str) -> None:
        if not self.has_exited:
            self.killed_because = because
            self.child.kill()

    def end(self) -> None:
        """Kill it, and remove the locks of its unfinished builds, because nobody else would."""
        self.child.end()
        self._read_rest()
        for path in self._locks:
            # Torch names the file "lock" and leaves it empty.
            with suppress(OSError):
                if os.path.basename(path) == "lock" and not os.path.getsize(path):
                    os.unlink(path)

    def ask_for_stack(self) -> bool:
        # Its handler writes to the descriptor even if the trainer has replaced it.
        if not Known.of(self._stack).is_intact_in(self.child.pid):
            return False
        stacks.ask(self.child.pid)
        return True

    def stack_size(self) -> int:
        return os.fstat(self._stack).st_size

    def _printed(self) -> tuple[str, str]:
        return self.output.text(), tail(self._stack)

    @property
    def _doing(self) -> str:
        """What it was doing outside the trainer's function, in words that complete its `exit`."""
        if self._waits_for is not None:
            return (
                f" while it waited for the build lock of a torch extension, {self._waits_for}; if no build is running, "
                "a killed one has left the file: remove it"
            )
        if self._locks:
            return (
                f" while it built a torch extension, for which it had {BUILD_LIMIT:g} s besides its time limit; build "
                "it before the run"
            )
        if self._leaves_running is not None:
            return (
                " after its function had returned: at exit, Python waits for non-daemon threads and processes, here "
                f"{self._leaves_running}"
            )
        return ""

    def _exit(self, after: int | None) -> str:
        if self.killed_because:
            return f"killed {self.killed_because}{self._doing}"
        if self.child.status is None:
            raise AssertionError(f"{rank_name(self.rank)} is still running")
        code = os.waitstatus_to_exitcode(self.child.status)
        if self.delivered and code < 0:
            how = "aborted" if signal_name(-code) == "SIGABRT" else "killed"
            return f"{how} after it delivered: {signal_name(-code)}"
        text = describe_status(self.child.status)
        if self.delivered:
            return f"{text} after it delivered" if code else text
        if self._is_limited:
            return (
                f"{rank_name(self.rank)} lowered its file size limit (RLIMIT_FSIZE), so its events could not be "
                "recorded; leave the limit unchanged"
            )
        if code == DESCRIPTORS_LOST:
            return (
                f"{rank_name(self.rank)} closed or replaced file descriptors it had not opened, so later events could "
                "not be recorded; close only the trainer's own"
            )
        if code >= 0:
            text += " before it finished"
        if code == HARNESS_FAILED and (words := last_line(self.output.text())):
            text += f"; it last printed: {words}"
        return text if after is None else f"{text}, after rank {after} failed"


def _is_ours(lock: str) -> bool:
    """Whether a rank of this run may hold this build lock."""
    try:
        return os.path.getmtime(lock) >= _BEGAN
    except OSError:
        # It has just been removed.
        return True
