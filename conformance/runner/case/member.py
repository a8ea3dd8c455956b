"""One rank of a running case, as its server sees it, for any kind of process."""

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
    """The problem with a rank's evidence, in words that follow "the evidence of rank 1"."""


class Evidence:
    """The events of ``rank``, checked as they come, because a trainer can write to any descriptor of its process. The
    driver's events have no numbers."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._numbered: list[tuple[int, bytes]] = []

    def add(self, line: bytes) -> None:
        """Add a line. Raises MalformedEvidence if it is not an event of this rank."""
        position = len(self._numbered)
        self._numbered.append((_number(position, line, self._rank), line))

    def events(self, *, is_whole: bool) -> Lines:
        """The events in the order of their numbers, because threads may write them in another order.

        ``is_whole``: the rank has delivered, so none may be missing. Otherwise, returns those before the first gap.

        Raises:
            MalformedEvidence: an event is missing or repeated.
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
    """Whether an event's line can begin like this: `protocol.encode` writes no white space."""
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
    return MalformedEvidence(f"has an invalid line {position + 1}: {excerpt(line)}")


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)


# `json.loads` would create a decoder for each line, which takes as long as reading the line.
_decode = json.JSONDecoder(parse_constant=_refuse).decode


def excerpt(line: bytes) -> str:
    """The start of a line, safe to print."""
    return ascii(line[:40].decode(errors="replace")) + ("..." if len(line) > 40 else "")


class RankMember(Answering):
    """The current state of a rank, and the connection on which it reports.

    Attributes:
        started, delivered, raised: its reports so far.
        malformed: the problem with its evidence, if any, which fails the rank at once.
        killed_because: why the harness killed it, in words that complete "killed".
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
        """Whether it builds a torch extension, or waits for a rank of this run that does."""
        return False

    @abstractmethod
    def fileno(self) -> int:
        """A descriptor that is readable when there is something to `read`."""

    @abstractmethod
    def read(self) -> bool:
        """Read its reports; False when nothing more will come."""

    @abstractmethod
    def kill(self, because: str) -> None:
        """End it and everything it started, unless it has exited."""

    @property
    def failure(self) -> Failure | None:
        """Its failure before it delivered, if any."""
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
            # It raised only after the harness had stopped it and its peers.
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
        """How it ended, in one phrase. ``after``: the rank whose failure may have caused this."""

    def _note(self, notice: dict[str, Any]) -> None:
        self.started = True
        if notice["event"] == "finished":
            self.delivered = self.malformed is None
        elif notice["event"] == "raised":
            self.raised = True
            # A time on the system's clock, which all processes share.
            self._fail(notice["at"])

    def _fail(self, at: float) -> None:
        """Note a failure, unless the harness caused it by killing the rank."""
        if self._failed_at is None and not self.killed_because:
            self._failed_at = at

    def _add(self, line: bytes) -> None:
        """Add a line of its evidence."""
        try:
            self._evidence.add(line)
        except MalformedEvidence as error:
            self._reject(str(error))

    def _reject(self, what: str) -> None:
        """End it for malformed evidence. ``what``: the problem, in words that follow "the evidence of rank 1"."""
        if self.malformed is None:
            self.malformed = what
            self.delivered = False
            self._fail(monotonic())
            self.kill("because its evidence is malformed")
