"""Ring all-reduce: which rank sends which segment in each step, and what each rank has afterwards.

A gradient is cut into as many segments as there are ranks. In the first N - 1 steps (reduce-scatter) every rank adds
the received segment: rank r ends with the whole sum of segment r. In the next N - 1 steps (all-gather) every rank
replaces its own segment by the received one. In each step every rank sends one segment to the next rank, all at the
same time: a rank sends 2 (N - 1) / N of the gradient, for any number of ranks (Patarasuk and Yuan,
"Bandwidth optimal all-reduce algorithms for clusters of workstations", J. Parallel Distrib. Comput. 69, 2009).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

#: pieces[rank][segment]
Pieces = tuple[tuple[T, ...], ...]


@dataclass(frozen=True)
class Message:
    """One segment sent from a rank to the next, where it is added to that rank's segment (``adds``) or replaces it."""

    sender: int
    receiver: int
    segment: int
    adds: bool


def schedule(world_size: int) -> tuple[tuple[Message, ...], ...]:
    """The messages of each of the 2 (N - 1) steps.

    Raises:
        ValueError: fewer than one rank.
    """
    if world_size < 1:
        raise ValueError(f"a ring of {world_size} ranks")
    ranks = range(world_size)

    def step(shift: int, adds: bool) -> tuple[Message, ...]:
        return tuple(Message(rank, (rank + 1) % world_size, (rank - shift) % world_size, adds) for rank in ranks)

    reduce_scatter = [step(number + 1, True) for number in range(world_size - 1)]
    all_gather = [step(number, False) for number in range(world_size - 1)]
    return (*reduce_scatter, *all_gather)


def played(pieces: Sequence[Sequence[T]], add: Callable[[T, T], T]) -> list[Pieces[T]]:
    """The segments of every rank, at the start (``pieces``) and after each step."""
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
    """The ranks, ascending, whose gradients each segment of a rank contains: at the start, and after each step."""
    start = [[(rank,)] * world_size for rank in range(world_size)]
    return played(start, lambda own, arrived: tuple(sorted(own + arrived)))
