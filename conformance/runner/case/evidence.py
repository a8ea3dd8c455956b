"""Reads what a rank left as evidence. A trainer can write to any descriptor of its process, so nothing is assumed."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from conformance.runner.case.supervision import DRIVER
from conformance.runner.system.protocol import Lines

#: Bytes. The longest case of the matrix leaves less than a tenth of it.
LARGEST = 1 << 28
_BEGINNING = b'{"'


class MalformedEvidence(ValueError):
    """What is wrong with the evidence of a rank, in words that follow "the evidence of rank 1"."""


class Evidence:
    """The events of ``rank``, which are checked as they come. Those of the driver have no numbers."""

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
