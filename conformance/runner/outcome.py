"""What the ranks of one case delivered, and what can go wrong before there are any."""

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
    """The harness itself failed: no process could be started, or torch cannot be imported."""


class ZygoteLost(RunnerError):
    """The process that imports torch has ended, as when the system killed it for its memory."""


class ImporterLost(ZygoteLost):
    """Only the process that had imported one trainer has ended."""


class HostLost(RunnerError):
    """One of several machines, or our process there, is lost: nothing can run on it any more."""


class Unavailable(Exception):
    """The backend, or something that the trainer requires, is missing on this machine.

    Attributes:
        reason: what is missing, one line.
        command: the command that installs it, if one does.
        declaration: what the trainer declares, if that is known without importing it.
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
        events: what it sent, in its order, without a last line that is incomplete.
        finished: its function returned and the evidence arrived, however the process ended afterwards.
        exit: one phrase, such as "exited 0" or "killed by SIGSEGV".
        output: the last 20 kB of its standard output and standard error.
        stack: where each of its threads was at the time limit.
        after: the rank that failed first, if that may be why this one did not finish either.
        host: the machine that it ran on, in a run on several.
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
        """As JSON; events are JSON already and are copied."""
        others = {name: value for name, value in vars(self).items() if name != "events"}
        events = self.events if isinstance(self.events, Lines) else Lines([to_json(event) for event in self.events])
        return events.beside(others, "events")


@dataclass(frozen=True)
class Outcome:
    """How one case ended. ``timed_out``: the time limit passed before every rank had delivered. ``earlier``: where
    training was resumed twice from one checkpoint, how it ended for the first time; ``altered``: the files of the
    checkpoint that were others, or gone, after that. ``recorded``: the ranks before their events were placed.
    ``lives``: of a case that was resumed, that up to its stop and that from there; ``life``: which of them this is, as
    in the spec that it was placed by."""

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
        return Lines([rank.to_json() for rank in self.ranks]).beside(others, "ranks")

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Outcome:
        return cls(**{**values, "ranks": tuple(RankOutcome(**rank) for rank in values["ranks"])})

    def placed(self, spec: Mapping[str, Any]) -> Outcome:
        """This outcome with each event in its place in the plan, see `conformance.trace.hindsight`.

        A rank with something else among its events has not delivered its evidence.
        """
        if self.lives:
            first, second = (one.placed({**spec, "life": one.life}) for one in self.lives)
            return first.followed_by(second)
        recorded = self.recorded or self.ranks
        ranks = tuple(_placed(spec, rank) for rank in recorded)
        return replace(self, ranks=ranks, recorded=recorded, life=spec.get("life"))

    def followed_by(self, other: Outcome) -> Outcome:
        """This outcome of a case up to its stop, and the ``other`` of what was resumed, as one. Both are placed. Ranks
        that only one of them has stay as they are."""
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
        """This outcome of processes that were to be killed, as if they had stopped before ``window``. It is placed."""
        return replace(self, ranks=tuple(_up_to(window, rank) for rank in self.ranks), timed_out=False)

    @classmethod
    def without_evidence(cls, world_size: int, exit: str, seconds: float, *, timed_out: bool = False) -> Outcome:
        """The outcome of a case that delivered nothing: the same ``exit`` for every rank."""
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
    """How a rank ended whose evidence is not what the recorder wrote; ``what`` is wrong with it."""
    return (
        f"the evidence of rank {rank} {what}; the trainer wrote to a file descriptor that it had not opened, or "
        "truncated it"
    )


def describe_status(status: int) -> str:
    """A wait status in words: "exited 3" or "killed by SIGSEGV"."""
    code = os.waitstatus_to_exitcode(status)
    return f"exited {code}" if code >= 0 else f"killed by {signal_name(-code)}"


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
