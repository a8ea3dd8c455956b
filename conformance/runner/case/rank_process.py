"""A rank that runs in a process that we forked."""

from __future__ import annotations

import os
from collections.abc import Callable
from time import monotonic

from conformance.runner.case.member import RankMember
from conformance.runner.case.supervision import rank_name
from conformance.runner.outcome import describe_status, signal_name
from conformance.runner.rank.rank import Pipes
from conformance.runner.system import protocol, stacks
from conformance.runner.system.child import Child
from conformance.runner.system.descriptors import Descriptors, contents, tail

_CHUNK = 1 << 16


class RankProcess(RankMember):
    """A forked process, the pipe for its notices, and files that outlive it: evidence, output, stack."""

    def __init__(self, rank: int, descriptors: Descriptors, hold: int, become: Callable[[Pipes], int]) -> None:
        """The process calls ``become``. ``hold``: the pipe that closes when it may leave."""
        super().__init__(rank)
        self._notices, write = descriptors.pipe()
        os.set_blocking(self._notices, False)
        self._output, self._stack, self._evidence = (descriptors.file() for _ in range(3))
        self._unread = bytearray()
        pipes = Pipes(self._evidence, write, hold, self._stack)

        def body() -> int:
            os.dup2(self._output, 1)
            os.dup2(self._output, 2)
            return become(pipes)

        self.child = Child(body)
        descriptors.close(write)

    @property
    def has_exited(self) -> bool:
        return self.child.status is not None

    def fileno(self) -> int:
        return self._notices

    def read(self) -> bool:
        while True:
            try:
                data = os.read(self._notices, _CHUNK)
            except BlockingIOError:
                return True
            if not data:
                return False
            self._unread += data
            *lines, self._unread = self._unread.split(b"\n")
            for line in lines:
                self._note(protocol.decode(bytes(line)))

    def reap(self) -> None:
        """If the process has ended, note it and read its last reports."""
        if not self.has_exited and self.child.poll() is not None:
            self.read()
            self._fail(monotonic())

    def kill(self, because: str) -> None:
        if not self.has_exited:
            self.killed_because = because
            self.child.kill()

    def ask_for_stack(self) -> bool:
        return stacks.Process(self.child.pid, self._stack).ask_for_stack()

    def stack_size(self) -> int:
        return stacks.Process(self.child.pid, self._stack).stack_size()

    def _events(self) -> protocol.Lines:
        """All events that it sent. The last line may be incomplete if it was killed."""
        *lines, _ = contents(self._evidence).split(b"\n")
        return protocol.Lines(lines)

    def _printed(self) -> tuple[str, str]:
        return tail(self._output), tail(self._stack)

    def _exit(self, after: int | None) -> str:
        if self.killed_because:
            return f"killed {self.killed_because}"
        if self.child.status is None:
            raise AssertionError(f"{rank_name(self.rank)} is still running")
        code = os.waitstatus_to_exitcode(self.child.status)
        if self.delivered and code < 0:
            how = "aborted" if signal_name(-code) == "SIGABRT" else "killed"
            return f"{how} after it delivered: {signal_name(-code)}"
        text = describe_status(self.child.status)
        if self.delivered:
            return f"{text} after it delivered" if code else text
        if code >= 0:
            text += " before it finished"
        return text if after is None else f"{text}, after rank {after} failed"
