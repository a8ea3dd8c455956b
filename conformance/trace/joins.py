"""Matches the events of one collective on several ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TypeAlias

from conformance.trace.events import Collective, Event

Place: TypeAlias = tuple[int, int]
"""A rank, and the `seq` of one of its events."""


def joined(ranks: Sequence[Sequence[Event]]) -> list[list[Place]]:
    """The places of each collective on the ranks that took part, the earliest first; `ranks` are the ranks' events.

    The n-th collective with the same operation, size and group is the same one on all ranks. Leaves out collectives
    that only one rank entered.
    """
    met: defaultdict[object, list[tuple[float, Place]]] = defaultdict(list)
    for rank, events in enumerate(ranks):
        seen: defaultdict[object, int] = defaultdict(int)
        for event in events:
            if isinstance(event, Collective):
                kind = (event.via, event.op, event.bytes, tuple(event.group))
                met[kind, seen[kind]].append((event.time, (rank, event.seq)))
                seen[kind] += 1
    return [[place for _, place in sorted(times)] for times in met.values() if len(times) > 1]
