"""The outcome of one case, and errors before it has one."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from conformance.adapter.declaration import Declaration
from conformance.runner.system.protocol import Lines, to_json
from conformance.trace.events import MalformedEvent, check_all
from conformance.trace.hindsight.placing import placed
from conformance.trace.lives import joined

_EXITED = "exited 0"


class RunnerError(Exception):
    """The harness itself failed: it could not start a process, or import torch."""


class ZygoteLost(RunnerError):
    """The process that imports torch has died, as when the system runs out of memory."""


class ImporterLost(ZygoteLost):
    """Only the process that imported one trainer has died."""


class HostLost(RunnerError):
    """One of several machines, or the harness's process there, is lost. Nothing can run on it."""


class Unavailable(Exception):
    """The backend, or a requirement of the trainer, is missing on this machine.

    Attributes:
        reason: the missing thing, in one line.
        command: the command that installs it, if any.
        declaration: what the trainer supports, if known without an import.
    """

    def __init__(self, reason: str, command: str | None, declaration: Declaration | None) -> None:
        super().__init__(reason if command is None else f"{reason}; install it with: {command}")
        self.reason = reason
        self.command = command
        self.declaration = declaration

    def to_dict(self) -> dict[str, Any]:
        declaration = self.declaration and self.declaration.to_dict()
        return {"reason": self.reason, "command": self.command, "declaration": declaration}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Unavailable:
        declaration = values["declaration"] and Declaration.from_dict(values["declaration"])
        return cls(values["reason"], values["command"], declaration)


@dataclass(frozen=True)
class RankOutcome:
    """How one rank ended.

    Attributes:
        events: its events in order, without an incomplete last line.
        finished: its function returned and all evidence arrived, no matter how the process ended later.
        exit: one phrase, such as "exited 0" or "killed by SIGSEGV".
        output: the last 20 kB of its standard output and standard error.
        stack: the stacks of its threads at the time limit.
        after: the rank that failed first, if that may have stopped this one.
        host: its machine, in a run on several machines.
    """

    rank: int
    events: Sequence[dict[str, Any]]
    finished: bool
    exit: str
    output: str
    stack: str | None
    after: int | None = None
    host: str | None = None

    def to_json(self) -> bytes:
        """The outcome as JSON; events are copied if they are JSON already."""
        others = {name: value for name, value in vars(self).items() if name != "events"}
        events = self.events if isinstance(self.events, Lines) else Lines([to_json(event) for event in self.events])
        return events.within(others, "events")


@dataclass(frozen=True)
class Outcome:
    """How one case ended.

    Attributes:
        timed_out: the time limit passed before every rank had delivered.
        earlier: the outcome of the first resume, if training was resumed twice from one checkpoint.
        altered: the files of the checkpoint that the first resume changed or removed.
        recorded: the ranks before their events were placed.
        lives: the outcomes before and after the stop of a resumed case.
        life: the life that this is, as in the spec by which it was placed.
    """

    ranks: tuple[RankOutcome, ...]
    seconds: float
    timed_out: bool
    altered: tuple[str, ...] = ()
    earlier: Outcome | None = None
    recorded: tuple[RankOutcome, ...] = ()
    lives: tuple[Outcome, ...] = ()
    life: Mapping[str, Any] | None = None

    def to_json(self) -> bytes:
        kept_back = ("ranks", "recorded", "lives", "life")
        others = {name: value for name, value in vars(self).items() if name not in kept_back}
        return Lines([rank.to_json() for rank in self.ranks]).within(others, "ranks")

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Outcome:
        return cls(**{**values, "ranks": tuple(RankOutcome(**rank) for rank in values["ranks"])})

    def placed(self, spec: Mapping[str, Any]) -> Outcome:
        """This outcome with each event at its place in the plan, see `conformance.trace.hindsight`.

        A rank with a malformed event counts as not finished.
        """
        if self.lives:
            first, second = (one.placed({**spec, "life": one.life}) for one in self.lives)
            return first.followed_by(second)
        recorded = self.recorded or self.ranks
        ranks = tuple(_placed(spec, rank) for rank in recorded)
        return replace(self, ranks=ranks, recorded=recorded, life=spec.get("life"))

    def followed_by(self, other: Outcome) -> Outcome:
        """This outcome of a case up to its stop joined with the ``other`` after the resume, both placed. Ranks that
        only one of them has stay unchanged."""
        both = [
            replace(
                after,
                events=joined(before.events, after.events),
                exit=after.exit if before.exit == _EXITED else before.exit,
                output=before.output + after.output,
            )
            for before, after in zip(self.ranks, other.ranks, strict=False)
        ]
        ranks = (*both, *self.ranks[len(both) :], *other.ranks[len(both) :])
        seconds = self.seconds + other.seconds
        return replace(
            self, ranks=ranks, seconds=seconds, timed_out=other.timed_out, recorded=(), lives=(self, other), life=None
        )

    def up_to(self, window: int) -> Outcome:
        """This placed outcome of killed processes, cut as if they had stopped before ``window``."""
        return replace(self, ranks=tuple(_up_to(window, rank) for rank in self.ranks), timed_out=False)

    @classmethod
    def without_evidence(cls, world_size: int, exit: str, seconds: float, *, timed_out: bool = False) -> Outcome:
        """The outcome of a case without events: the same ``exit`` for every rank."""
        ranks = tuple(RankOutcome(rank, (), False, exit, "", None) for rank in range(world_size))
        return cls(ranks, seconds, timed_out)


def _placed(spec: Mapping[str, Any], rank: RankOutcome) -> RankOutcome:
    try:
        events = placed(spec, rank.rank, rank.events)
        check_all(events, rank.rank)
    except MalformedEvent as error:
        return replace(rank, events=(), finished=False, exit=malformed(rank.rank, f"has {error}"))
    return replace(rank, events=events)


def _up_to(window: int, rank: RankOutcome) -> RankOutcome:
    later = (number for number, event in enumerate(rank.events) if (event["window"] or 0) >= window)
    kept = rank.events[: next(later, len(rank.events))]
    return replace(rank, events=kept, finished=True, exit=_EXITED, stack=None, after=None)


def malformed(rank: int, what: str) -> str:
    """The `exit` of a rank whose evidence was damaged; ``what``: the problem, in words that follow "rank 1"."""
    return f"the evidence of rank {rank} {what}; the trainer wrote to or truncated a file descriptor it had not opened"


def describe_status(status: int) -> str:
    """A wait status in words: "exited 3" or "killed by SIGSEGV"."""
    code = os.waitstatus_to_exitcode(status)
    return f"exited {code}" if code >= 0 else f"killed by {signal_name(-code)}"


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
