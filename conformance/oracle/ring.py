"""Ring all-reduce: which rank sends which segment in which step.

A gradient is cut into as many segments as there are ranks. In the first N - 1 steps (reduce-scatter) every rank adds
what it receives, so that rank r ends with the whole sum of segment r. In the next N - 1 steps (all-gather) every rank
replaces its own segment by what it receives. In each step every rank sends one segment to the next rank, all at the
same time: a rank sends 2 (N - 1) / N of the gradient, however many ranks there are (Patarasuk and Yuan,
"Bandwidth optimal all-reduce algorithms for clusters of workstations", J. Parallel Distrib. Comput. 69, 2009).
"""

from __future__ import annotations

from dataclasses import dataclass


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
