"""What came back from the ranks of one case, and what can go wrong before there are any."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from conformance.adapter.declaration import Declaration
from conformance.runner.system.protocol import Lines, to_json


class RunnerError(Exception):
    """The harness itself failed: no process could be started, or torch cannot be imported."""


class HostLost(RunnerError):
    """One of several machines, or our process there, is gone: nothing can run on it any more."""


class Unavailable(Exception):
    """The backend, or something that the trainer requires, cannot be had here.

    Attributes:
        reason: what is missing, one line.
        command: the command that installs it, if one does.
        declaration: what the trainer declares, where that could be found out without importing it.
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
        events: what it sent, in its order; a line that it did not complete is left out.
        finished: its function returned and the evidence arrived, whatever became of the process afterwards.
        exit: one phrase, such as "exited 0" or "killed by SIGSEGV".
        output: the last 20 kB of its standard output and standard error.
        stack: where each of its threads was when the time limit came.
        after: the rank that failed first, where this one did not finish either and may only have followed it.
        host: the machine that it ran on, where that is not simply this one.
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
        """Events that are JSON already stay as they are."""
        others = {name: value for name, value in vars(self).items() if name != "events"}
        events = self.events if isinstance(self.events, Lines) else Lines([to_json(event) for event in self.events])
        return events.beside(others, "events")

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> RankOutcome:
        return cls(**{**values, "events": tuple(values["events"])})


@dataclass(frozen=True)
class Outcome:
    """How one case ended. ``timed_out``: the time limit came before every rank had delivered."""

    ranks: tuple[RankOutcome, ...]
    seconds: float
    timed_out: bool

    def to_json(self) -> bytes:
        others = {name: value for name, value in vars(self).items() if name != "ranks"}
        return Lines([rank.to_json() for rank in self.ranks]).beside(others, "ranks")

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Outcome:
        return cls(**{**values, "ranks": tuple(RankOutcome.from_dict(rank) for rank in values["ranks"])})

    @classmethod
    def without_evidence(cls, world_size: int, exit: str, seconds: float) -> Outcome:
        """The outcome of a case of which nothing came back: the same ``exit`` for every rank."""
        ranks = tuple(RankOutcome(rank, (), False, exit, "", None) for rank in range(world_size))
        return cls(ranks, seconds, timed_out=False)


def describe_status(status: int) -> str:
    """A wait status in words: "exited 3" or "killed by SIGSEGV"."""
    code = os.waitstatus_to_exitcode(status)
    return f"exited {code}" if code >= 0 else f"killed by {signal_name(-code)}"


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
