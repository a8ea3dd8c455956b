"""Decides what to do about the ranks of one case, from their state and the clock.

A state machine without processes: it reads the attributes of `Member` and returns actions. In the server, each rank is
a member; in the front of several machines, all ranks of a node are one member.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Generic, NamedTuple, Protocol, TypeAlias, TypeVar

# Seconds. Importing torch in fresh interpreters, several at once, may take long.
START_LIMIT = 120.0
# For builds of extensions, which do not count towards the time limit of a case.
BUILD_LIMIT = 600.0
# After a rank has exited, its peers' collectives fail at once or hang; this is the time for failed peers to report.
GRACE = 2.0
# From the release to the exit, between which a rank has nothing left to do.
LEAVE_LIMIT = 5.0

#: The "rank" of a process that belongs to the case as a whole.
DRIVER = -1


class Failure(NamedTuple):
    """A rank's failure before it delivered. Failures are ordered: the smaller one came first.

    A death without a report counts as earlier than any exception, because peers raise as soon as its connections break,
    and the harness sees the death only later.
    """

    raised: bool
    at: float
    rank: int


class Member(Protocol):
    """The current state of a rank, or of all ranks of a node."""

    @property
    def started(self) -> bool: ...

    @property
    def delivered(self) -> bool:
        """The trainer's function has returned, and all evidence has arrived."""

    @property
    def has_exited(self) -> bool: ...

    @property
    def is_building(self) -> bool:
        """It builds a torch extension, or waits for another process that does."""

    @property
    def failure(self) -> Failure | None: ...


M = TypeVar("M", bound=Member)


class Phase(Enum):
    """The phases of a case, each with its own time limit."""

    STARTING = auto()
    RUNNING = auto()
    FAILED = auto()
    RELEASED = auto()


class Limits(NamedTuple):
    """The time limits of the phases, in seconds."""

    run: float
    start: float = START_LIMIT
    build: float = BUILD_LIMIT
    grace: float = GRACE
    leave: float = LEAVE_LIMIT


class AllStarted(NamedTuple):
    """Every member has started, or exited."""


class Building(NamedTuple):
    """Members have started to build, or all builds have ended."""

    in_progress: bool


class FirstFailure(NamedTuple):
    """The earliest known failure."""

    rank: int
    raised: bool


class AllFinished(NamedTuple):
    """Every member has delivered, or exited."""


class Release(NamedTuple):
    """Let the members leave."""


@dataclass(frozen=True)
class Stop(Generic[M]):
    """Stop waiting for ``members``.

    Attributes:
        because: the reason, in words that complete "killed".
        is_late: whether they are stopped because they hang, rather than after a failure or their release.
    """

    members: tuple[M, ...]
    because: str
    is_late: bool


Action: TypeAlias = AllStarted | Building | FirstFailure | AllFinished | Release | Stop[M]


class Supervision(Generic[M]):
    """Stops members that are late or that outlive a failure, and lets the others leave together.

    Attributes:
        deadline: the latest time for the next call of `advance`.
        may_leave: members may leave when all have finished; otherwise they wait for other machines.
        failed_elsewhere: the rank that failed first according to all machines.
        given_up: why the front stopped waiting, if it did.
    """

    def __init__(self, members: Sequence[M], limits: Limits, time_limit: float, now: float, *, may_leave: bool) -> None:
        """``time_limit``: the user's limit. ``now``: seconds on any clock, the same for `advance`."""
        self._members = members
        self._limits = limits
        self._time_limit = time_limit
        self.phase = Phase.STARTING
        self.deadline = now + limits.start
        self.may_leave = may_leave
        self.failed_elsewhere: int | None = None
        self.given_up: str | None = None
        self._have_started = self._have_finished = self._has_stopped = False
        self._is_building = False
        self._time_of_builds, self._advanced_at = 0.0, now
        self._reported: Failure | None = None
        self._late: tuple[M, ...] = ()

    @property
    def first_failed(self) -> int | None:
        """The rank that failed first, which may have made others fail."""
        if self.failed_elsewhere is not None:
            return self.failed_elsewhere
        return None if self._first_failure is None else self._first_failure.rank

    @property
    def timed_out(self) -> bool:
        return any(not member.delivered for member in self._late)

    @property
    def is_over(self) -> bool:
        return self.may_leave and all(member.has_exited for member in self._members)

    def advance(self, now: float) -> Iterator[Action[M]]:
        """The actions to take now."""
        self._leave_time_for_builds(now)
        if not self._have_started and all(member.started or member.has_exited for member in self._members):
            self._have_started = True
            if self.phase is Phase.STARTING:
                self._enter(Phase.RUNNING, now + self._limits.run)
            yield AllStarted()
        if self._is_building != (building := any(member.is_building for member in self._members)):
            self._is_building = building
            yield Building(building)
        failure = self._first_failure
        if failure is not None and failure != self._reported:
            self._reported = failure
            yield FirstFailure(failure.rank, failure.raised)
        if self.first_failed is not None and self.phase in (Phase.STARTING, Phase.RUNNING):
            self._enter(Phase.FAILED, now + self._limits.grace)
        if not self._have_finished and all(member.delivered or member.has_exited for member in self._members):
            self._have_finished = True
            yield AllFinished()
        if self._have_finished and self.may_leave and self.phase is not Phase.RELEASED:
            self._enter(Phase.RELEASED, now + self._limits.leave)
            yield Release()
        elif now >= self.deadline or (self.given_up and not self._have_finished and not self._has_stopped):
            self._has_stopped = True
            self.deadline = now + self._limits.leave
            yield self._stop()

    @property
    def _first_failure(self) -> Failure | None:
        return min((member.failure for member in self._members if member.failure), default=None)

    def _leave_time_for_builds(self, now: float) -> None:
        """Extend the deadline by the time since the last call if a build is in progress. Each start or end of a build
        calls this."""
        if self._is_building and self.phase is Phase.RUNNING:
            spent = min(now - self._advanced_at, self._limits.build - self._time_of_builds)
            self._time_of_builds += spent
            self.deadline += spent
        self._advanced_at = now

    def _enter(self, phase: Phase, deadline: float) -> None:
        self.phase = phase
        self.deadline = deadline

    def _stop(self) -> Stop[M]:
        if self.phase is Phase.RELEASED:
            remaining = tuple(member for member in self._members if not member.has_exited)
            return Stop(remaining, "because it did not leave after it delivered", is_late=False)
        remaining = tuple(member for member in self._members if not (member.delivered or member.has_exited))
        if self.first_failed is not None:
            return Stop(remaining, f"after {rank_name(self.first_failed)} failed", is_late=False)
        self._late = remaining
        return Stop(remaining, self.given_up or self._too_late(), is_late=True)

    def _too_late(self) -> str:
        if self._have_started:
            return f"at the time limit of {self._time_limit:g} s"
        return f"because it had not started after {self._limits.start:g} s"


def rank_name(rank: int) -> str:
    return "the trainer's function" if rank == DRIVER else f"rank {rank}"
