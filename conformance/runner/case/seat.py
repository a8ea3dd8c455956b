"""One rank of a running case, as its trainer server sees it."""

from __future__ import annotations

import os
from time import monotonic
from typing import Any

from conformance.runner.outcome import RankOutcome, describe_status, signal_name
from conformance.runner.system import processes, protocol
from conformance.runner.system.descriptors import contents, tail

#: The "rank" of a process that belongs to the case as a whole.
DRIVER = -1
_CHUNK = 1 << 16


def called(rank: int) -> str:
    return "the trainer's function" if rank == DRIVER else f"rank {rank}"


class Seat:
    """A rank's process, pipe and files, and what is known of it so far."""

    def __init__(self, rank: int, notices: int, evidence: int, output: int, stack: int) -> None:
        os.set_blocking(notices, False)
        self.rank = rank
        self.pid = 0
        self.descriptor = notices
        self.stack_file = stack
        self._evidence_file = evidence
        self.started = self.delivered = False
        self.killed_because: str | None = None
        self._output_file = output
        self._status: int | None = None
        self.raised = False
        self._failed_at: float | None = None
        self._unread = bytearray()

    @property
    def gone(self) -> bool:
        return self._status is not None

    @property
    def through(self) -> bool:
        """Nothing more is expected of it: it delivered, or it is gone."""
        return self.delivered or self.gone

    @property
    def failure(self) -> tuple[bool, float, int] | None:
        """What of itself went wrong before it delivered; of two ranks' failures the lesser one came first.

        A death without a word counts before anything raised: peers raise as soon as its connections are gone,
        and the death itself is seen only later.
        """
        if self.delivered or self.killed_because or self._failed_at is None:
            return None
        return self.raised, self._failed_at, self.rank

    def read(self) -> bool:
        """Take in the rank's notices; False when it has closed the pipe."""
        while True:
            try:
                data = os.read(self.descriptor, _CHUNK)
            except BlockingIOError:
                return True
            if not data:
                return False
            self._unread += data
            *lines, self._unread = self._unread.split(b"\n")
            for line in lines:
                self._note(protocol.decode(bytes(line)))

    def _note(self, notice: dict[str, Any]) -> None:
        self.started = True
        if notice["event"] == "finished":
            self.delivered = True
        elif notice["event"] == "raised":
            self.raised = True
            # By the system's clock, which is the same one in every process.
            self._failed_at = notice["at"]

    def reap(self) -> None:
        """Note that the process has ended, if it has, and take in what it sent before."""
        if not self.gone and (status := processes.ended(self.pid)) is not None:
            self._status = status
            self.read()
            if self._failed_at is None:
                self._failed_at = monotonic()

    def kill(self, because: str) -> None:
        """Kill it and all that it started; ``because`` completes "killed"."""
        if not self.gone:
            self.killed_because = because
            processes.kill(self.pid)

    def outcome(self, first_failed: int | None) -> RankOutcome:
        after = None if self.delivered or first_failed in (self.rank, DRIVER) else first_failed
        return RankOutcome(
            rank=self.rank,
            events=self._events(),
            finished=self.delivered,
            exit=self._exit(after),
            output=tail(self._output_file),
            stack=tail(self.stack_file) or None,
            after=after,
        )

    def _events(self) -> protocol.Lines:
        """All that it sent; the last line may be incomplete, if it was killed."""
        *lines, _ = contents(self._evidence_file).split(b"\n")
        return protocol.Lines(lines)

    def _exit(self, after: int | None) -> str:
        if self.killed_because:
            return f"killed {self.killed_because}"
        if self._status is None:
            raise AssertionError(f"{called(self.rank)} is still running")
        code = os.waitstatus_to_exitcode(self._status)
        if self.delivered and code < 0:
            how = "aborted" if signal_name(-code) == "SIGABRT" else "killed"
            return f"{how} after it delivered: {signal_name(-code)}"
        text = describe_status(self._status)
        if self.delivered:
            return f"{text} after it delivered" if code else text
        if code >= 0:
            text += " before it finished"
        return text if after is None else f"{text}, after rank {after} failed"
