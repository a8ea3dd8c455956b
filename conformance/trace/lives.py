"""The lives of a rank: a case that is resumed runs each rank in one process after another, and joins their events.

Each process begins with `started`. Numbers of optimizers, forwards and the like begin anew in each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Any, TypeAlias

Events: TypeAlias = Sequence[dict[str, Any]]


def joined(first: Events, second: Events) -> list[dict[str, Any]]:
    """The events of two lives in one sequence: those of the second have the numbers that follow."""
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
    """The events of each life, at least one. ``resumed_at``: the window at which the case is resumed, if it is."""
    if resumed_at is None:
        return [events]
    starts = [number for number, event in enumerate(events) if number and event["event"] == "started"]
    return [events[begin:end] for begin, end in zip([0, *starts], [*starts, len(events)], strict=True)]


def by_life(spec: Mapping[str, Any], ranks: Iterable[Events]) -> list[tuple[Mapping[str, Any], Sequence[Events]]]:
    """For each life its spec, and the events of each rank that it has: a case may be resumed on other ranks."""
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
    """The spec of the ranks that a case is resumed on."""
    return {**spec, **spec.get("resumed_with", {})}
