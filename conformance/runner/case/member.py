"""One rank of a running case, as its trainer server sees it: what is common to all ways in which ranks are run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from conformance.runner.case.supervision import DRIVER, Failure
from conformance.runner.outcome import RankOutcome
from conformance.runner.system.protocol import Lines


class RankMember(ABC):
    """What is known of a rank so far, and the connection by which it reports.

    Attributes:
        started, delivered, raised: what it has reported of itself.
        killed_because: why we have ended it, in words that complete "killed".
    """

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.started = self.delivered = self.raised = False
        self.killed_because: str | None = None
        self._failed_at: float | None = None

    @property
    @abstractmethod
    def has_exited(self) -> bool: ...

    @abstractmethod
    def fileno(self) -> int:
        """Readable when there is something to `read`."""

    @abstractmethod
    def read(self) -> bool:
        """Take in what it has reported; False when nothing more will come."""

    @abstractmethod
    def kill(self, because: str) -> None:
        """End it and all that it started, unless it has exited."""

    @abstractmethod
    def ask_for_stack(self) -> bool:
        """Have it report where it is; False if it cannot."""

    @abstractmethod
    def stack_size(self) -> int:
        """How much of its stack was reported so far."""

    @property
    def failure(self) -> Failure | None:
        """What of itself went wrong before it delivered."""
        if self.delivered or self._failed_at is None:
            return None
        return Failure(self.raised, self._failed_at, self.rank)

    def outcome(self, first_failed: int | None) -> RankOutcome:
        after = None if self.delivered or first_failed in (self.rank, DRIVER) else first_failed
        output, stack = self._printed()
        return RankOutcome(
            rank=self.rank,
            events=self._events(),
            finished=self.delivered,
            exit=self._exit(after),
            output=output,
            stack=stack or None,
            after=after,
        )

    @abstractmethod
    def _events(self) -> Lines: ...

    @abstractmethod
    def _printed(self) -> tuple[str, str]:
        """Its output, and its stack."""

    @abstractmethod
    def _exit(self, after: int | None) -> str:
        """How it ended, in one phrase. ``after``: the rank whose failure it may have followed."""

    def _note(self, notice: dict[str, Any]) -> None:
        self.started = True
        if notice["event"] == "finished":
            self.delivered = True
        elif notice["event"] == "raised":
            self.raised = True
            # By the system's clock, which is the same one in every process.
            self._fail(notice["at"])

    def _fail(self, at: float) -> None:
        """What happens to it once it was killed is our own doing."""
        if self._failed_at is None and not self.killed_because:
            self._failed_at = at
