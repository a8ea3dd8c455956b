"""Reads what a rank left as evidence. A trainer can write to any descriptor of its process, so nothing is assumed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NoReturn

from conformance.runner.case.supervision import DRIVER
from conformance.runner.system.protocol import Lines

#: Bytes. The longest case of the matrix leaves less than a tenth of it.
LARGEST = 1 << 28


class MalformedEvidence(ValueError):
    """What is wrong with the evidence of a rank, in words that follow "the evidence of rank 1"."""


def events(lines: Sequence[bytes], rank: int, *, is_whole: bool) -> Lines:
    """The events of ``rank`` in the order of their numbers, which threads may have written in another order.

    Those of the driver have no numbers.

    ``is_whole``: the rank has delivered, so that none may be missing; otherwise those before the first gap.

    Raises:
        MalformedEvidence: a line is not an event of this rank, or one is missing.
    """
    if rank == DRIVER:
        for position, line in enumerate(lines):
            _event(position, line)
        return Lines(lines)
    numbered = sorted((_number(position, line, rank), line) for position, line in enumerate(lines))
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
    if type(event.get("seq")) is int and event.get("rank") == rank:
        return int(event["seq"])
    raise _no_event(position, line)


def _event(position: int, line: bytes) -> dict[str, Any]:
    try:
        event = _decode(line.decode())
    except (ValueError, RecursionError):
        raise _no_event(position, line) from None
    if isinstance(event, dict) and isinstance(event.get("event"), str):
        return event
    raise _no_event(position, line)


def _no_event(position: int, line: bytes) -> MalformedEvidence:
    return MalformedEvidence(f"has a line {position + 1} that is not an event of it: {_excerpt(line)}")


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)


# `json.loads` would make a decoder for each line, which takes as long as reading the line.
_decode = json.JSONDecoder(parse_constant=_refuse).decode


def _excerpt(line: bytes) -> str:
    return ascii(line[:40].decode(errors="replace")) + ("..." if len(line) > 40 else "")
