"""One rank of a running case, as its trainer server sees it, whatever kind of process it runs in."""

from __future__ import annotations

import json
from abc import abstractmethod
from time import monotonic
from typing import Any, NoReturn

from conformance.runner.case.supervision import DRIVER, Failure
from conformance.runner.outcome import RankOutcome, malformed
from conformance.runner.system.protocol import Lines, to_json
from conformance.runner.system.stacks import Answering

#: Bytes. The longest case of the matrix leaves less than a tenth of it.
LARGEST = 1 << 28
_BEGINNING = b'{"'


class MalformedEvidence(ValueError):
    """What is wrong with the evidence of a rank, in words that follow "the evidence of rank 1"."""


class Evidence:
    """The events of ``rank``, which are checked as they come. Those of the driver have no numbers.

    A trainer can write to any descriptor of its process, so nothing is assumed.
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._numbered: list[tuple[int, bytes]] = []

    def add(self, line: bytes) -> None:
        """Raises MalformedEvidence: the line is not an event of this rank."""
        position = len(self._numbered)
        self._numbered.append((_number(position, line, self._rank), line))

    def events(self, *, is_whole: bool) -> Lines:
        """The events in the order of their numbers, which threads may have written in another order.

        ``is_whole``: the rank has delivered, so that none may be missing; otherwise those before the first gap.

        Raises:
            MalformedEvidence: an event is missing.
        """
        numbered = sorted(self._numbered)
        for expected, (number, _) in enumerate(numbered):
            if number < expected:
                raise MalformedEvidence(f"has event {number} twice")
            if number > expected:
                if is_whole:
                    raise MalformedEvidence(f"has no event {expected}")
                numbered = numbered[:expected]
                break
        return Lines([line for _, line in numbered])


def _number(position: int, line: bytes, rank: int) -> int:
    event = _event(position, line)
    if rank == DRIVER:
        return position
    if type(event.get("seq")) is int and event.get("rank") == rank:
        return int(event["seq"])
    raise _no_event(position, line)


def may_begin(rest: bytes) -> bool:
    """Whether a line of ours can begin so: `protocol.encode` writes no white space."""
    return rest.startswith(_BEGINNING[: len(rest)])


def _event(position: int, line: bytes) -> dict[str, Any]:
    try:
        event = _decode(line.decode())
    except (ValueError, RecursionError):
        raise _no_event(position, line) from None
    if isinstance(event, dict) and isinstance(event.get("event"), str):
        return event
    raise _no_event(position, line)


def _no_event(position: int, line: bytes) -> MalformedEvidence:
    return MalformedEvidence(f"has a line {position + 1} that is not an event of it: {excerpt(line)}")


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)


# `json.loads` would make a decoder for each line, which takes as long as reading the line.
_decode = json.JSONDecoder(parse_constant=_refuse).decode


def excerpt(line: bytes) -> str:
    """The beginning of a line, as it may be printed."""
    return ascii(line[:40].decode(errors="replace")) + ("..." if len(line) > 40 else "")


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
