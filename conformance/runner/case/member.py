"""One rank of a running case, as its trainer server sees it: what all kinds of ranks have in common."""

from __future__ import annotations

from abc import abstractmethod
from time import monotonic
from typing import Any

from conformance.runner.case.evidence import Evidence, MalformedEvidence
from conformance.runner.case.supervision import DRIVER, Failure
from conformance.runner.outcome import RankOutcome, malformed
from conformance.runner.system.protocol import Lines, to_json
from conformance.runner.system.stacks import Answering


class RankMember(Answering):
    """What is known about a rank so far, and the connection on which it reports.

    Attributes:
        started, delivered, raised: what it has reported.
        malformed: what is wrong with what it has sent, if anything; that fails it at once.
        killed_because: why we killed it, in words that complete "killed".
    """

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.started = self.delivered = self.raised = False
        self.malformed: str | None = None
        self.killed_because: str | None = None
        self._evidence = Evidence(rank)
        self._failed_at: float | None = None

    @property
    @abstractmethod
    def has_exited(self) -> bool: ...

    @property
    def is_building(self) -> bool:
        """It builds an extension of torch, or waits for one of our ranks that does."""
        return False

    @abstractmethod
    def fileno(self) -> int:
        """Readable when there is something to `read`."""

    @abstractmethod
    def read(self) -> bool:
        """Read what it has reported; False when nothing more will come."""

    @abstractmethod
    def kill(self, because: str) -> None:
        """End it and everything that it started, unless it has exited."""

    @property
    def failure(self) -> Failure | None:
        """What went wrong in this rank before it delivered."""
        if self.delivered or self._failed_at is None:
            return None
        return Failure(self.raised, self._failed_at, self.rank)

    def outcome(self, first_failed: int | None) -> RankOutcome:
        after = None if self.delivered or first_failed in (self.rank, DRIVER) else first_failed
        output, stack = self._printed()
        try:
            events = self._evidence.events(is_whole=self.delivered)
        except MalformedEvidence as error:
            self._reject(str(error))
        if self.malformed is not None:
            why = malformed(self.rank, self.malformed)
            return RankOutcome(self.rank, (), False, why, output, stack or None, after)
        if self.raised and self._failed_at is None:
            # It raised when we had stopped it, because we had stopped its peers as well.
            events = Lines([to_json(event) for event in events if event["event"] != "raised"])
        return RankOutcome(
            rank=self.rank,
            events=events,
            finished=self.delivered,
            exit=self._exit(after),
            output=output,
            stack=stack or None,
            after=after,
        )

    @abstractmethod
    def _printed(self) -> tuple[str, str]:
        """Its output, and its stack."""

    @abstractmethod
    def _exit(self, after: int | None) -> str:
        """How it ended, in one phrase. ``after``: the rank whose failure may have caused this one."""

    def _note(self, notice: dict[str, Any]) -> None:
        self.started = True
        if notice["event"] == "finished":
            self.delivered = self.malformed is None
        elif notice["event"] == "raised":
            self.raised = True
            # By the system's clock, which all processes share.
            self._fail(notice["at"])

    def _fail(self, at: float) -> None:
        """Note a failure, unless we have killed the rank and so caused it."""
        if self._failed_at is None and not self.killed_because:
            self._failed_at = at

    def _add(self, line: bytes) -> None:
        """Take a line of its evidence."""
        try:
            self._evidence.add(line)
        except MalformedEvidence as error:
            self._reject(str(error))

    def _reject(self, what: str) -> None:
        """End it: ``what`` is wrong with what it has sent, in words that follow "the evidence of rank 1"."""
        if self.malformed is None:
            self.malformed = what
            self.delivered = False
            self._fail(monotonic())
            self.kill("because its evidence is malformed")
