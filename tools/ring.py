"""What each rank holds after each step of ring all-reduce."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from conformance.oracle.ring import schedule

T = TypeVar("T")

#: pieces[rank][segment]
Pieces = tuple[tuple[T, ...], ...]


def played(pieces: Sequence[Sequence[T]], add: Callable[[T, T], T]) -> list[Pieces[T]]:
    """What every rank holds of every segment, at the start (``pieces``) and after each step."""
    states = [tuple(map(tuple, pieces))]
    for messages in schedule(len(pieces)):
        before = states[-1]
        after = [list(segments) for segments in before]
        for message in messages:
            arrived, own = before[message.sender][message.segment], before[message.receiver][message.segment]
            after[message.receiver][message.segment] = add(own, arrived) if message.adds else arrived
        states.append(tuple(map(tuple, after)))
    return states


def contributions(world_size: int) -> list[Pieces[tuple[int, ...]]]:
    """The ranks, ascending, of which each segment that a rank holds contains the gradients: at the start, and after
    each step.
    """
    start = [[(rank,)] * world_size for rank in range(world_size)]
    return played(start, lambda own, arrived: tuple(sorted(own + arrived)))
