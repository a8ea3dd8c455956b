"""The lives of a rank: a resumed case runs each rank in one process after another, and joins their events.

Each process starts with `started`, and numbers its optimizers, forwards and the like from 0 again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Any, TypeAlias

Events: TypeAlias = Sequence[dict[str, Any]]


def joined(first: Events, second: Events) -> list[dict[str, Any]]:
    """The events of two lives in one sequence; the second's `seq` continue the first's."""
    behind = len(first)
    moved = []
    for event in second:
        changes: dict[str, Any] = {"seq": event["seq"] + behind}
        if "since" in event:
            changes["since"] = event["since"] + behind
        for name in ("unfinished", "unfinished_elsewhere"):
            if name in event:
                changes[name] = [seq + behind for seq in event[name]]
        moved.append({**event, **changes})
    return [*first, *moved]


def lives(resumed_at: int | None, events: Events) -> list[Events]:
    """The events of each life, at least one. ``resumed_at``: the window where the case resumes, None if it does not."""
    if resumed_at is None:
        return [events]
    starts = [number for number, event in enumerate(events) if number and event["event"] == "started"]
    return [events[begin:end] for begin, end in zip([0, *starts], [*starts, len(events)], strict=True)]


def by_life(spec: Mapping[str, Any], ranks: Iterable[Events]) -> list[tuple[Mapping[str, Any], Sequence[Events]]]:
    """The spec of each life and the events of its ranks; a case may resume on another number of ranks."""
    of_lives = [spec, as_resumed(spec)]
    parts = [
        [*([()] if rank >= spec["world_size"] else []), *lives(spec.get("resumed_at"), events)]
        for rank, events in enumerate(ranks)
    ]
    return [
        (of_life, life[: of_life["world_size"]])
        for of_life, life in zip(of_lives, zip_longest(*parts, fillvalue=()), strict=False)
    ]


def as_resumed(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The spec of the ranks on which a case resumes."""
    return {**spec, **spec.get("resumed_with", {})}
