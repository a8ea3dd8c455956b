"""Traces in the format that Chrome's tracing viewer and Perfetto open.

https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from conformance.trace.joins import joined

Recorded: TypeAlias = Mapping[str, Any]
Drawn: TypeAlias = dict[str, Any]

CALLS, COLLECTIVES = "calls", "collectives"
_ENTERED = ("autocast", "no_sync", "skip_synchronize", "scale_loss")
SPANS = {
    "backward_begin": "backward",
    "backward_end": "backward",
    **{f"{name}_enter": name for name in _ENTERED},
    **{f"{name}_exit": name for name in _ENTERED},
}
"""Kinds of event that begin or end something, and what; each has a track of its own, for they need not nest."""

TRACKS = {name: number for number, name in enumerate((CALLS, *dict.fromkeys(SPANS.values()), COLLECTIVES))}

_BEGINS = ("_begin", "_enter")
_HEAD = ("event", "rank", "time")
_DURATION = 1.0
"""Microseconds that a collective is drawn with: what is known of it is when it was issued."""


def chrome(case: str, ranks: Sequence[Sequence[Recorded]]) -> dict[str, Any]:
    """The object to write as JSON: a process for each rank, arrows where its collectives meet those of others."""
    began = min((event["time"] for events in ranks for event in events), default=0.0)
    drawn: list[Drawn] = []
    for rank, events in enumerate(ranks):
        drawn += _names(rank, case)
        drawn += _rank(rank, events, began)
    drawn += _arrows(ranks, began)
    return {"traceEvents": drawn, "displayTimeUnit": "ms", "otherData": {"case": case}}


def _names(rank: int, case: str) -> Iterator[Drawn]:
    process = {"ph": "M", "pid": rank, "tid": 0}
    yield {**process, "name": "process_name", "args": {"name": f"rank {rank} of {case}"}}
    yield {**process, "name": "process_sort_index", "args": {"sort_index": rank}}
    for name, track in TRACKS.items():
        yield {**process, "tid": track, "name": "thread_name", "args": {"name": name}}
        yield {**process, "tid": track, "name": "thread_sort_index", "args": {"sort_index": track}}


def _rank(rank: int, events: Sequence[Recorded], began: float) -> Iterator[Drawn]:
    """A span that was not ended ends with the trace; one that was begun before it is left out."""
    opened = dict.fromkeys(SPANS.values(), 0)
    for event in events:
        at = {"pid": rank, "ts": _microseconds(event, began), "args": _arguments(event)}
        span = SPANS.get(event["event"])
        if event["event"] == "collective":
            yield {"ph": "X", **at, "tid": TRACKS[COLLECTIVES], "name": _operation(event), "dur": _DURATION}
        elif span is None:
            yield {"ph": "i", "s": "t", **at, "tid": TRACKS[CALLS], "name": event["event"]}
        elif event["event"].endswith(_BEGINS):
            opened[span] += 1
            yield {"ph": "B", **at, "tid": TRACKS[span], "name": span}
        elif opened[span]:
            opened[span] -= 1
            yield {"ph": "E", **at, "tid": TRACKS[span], "name": span}
    for span, count in opened.items():
        for _ in range(count):
            yield {"ph": "E", "pid": rank, "tid": TRACKS[span], "ts": _microseconds(events[-1], began), "name": span}


def _arrows(ranks: Sequence[Sequence[Recorded]], began: float) -> Iterator[Drawn]:
    at = {(rank, event["seq"]): event for rank, events in enumerate(ranks) for event in events}
    for number, places in enumerate(joined(ranks)):
        for place in places:
            phase = "s" if place is places[0] else "f" if place is places[-1] else "t"
            arrow = {"ph": phase, "id": number, "cat": COLLECTIVES, "name": _operation(at[place])}
            where = {"pid": place[0], "tid": TRACKS[COLLECTIVES], "ts": _microseconds(at[place], began)}
            yield {**arrow, **where, **({"bp": "e"} if phase == "f" else {})}


def _microseconds(event: Recorded, began: float) -> float:
    time: float = event["time"]
    return round((time - began) * 1e6, 3)


def _operation(event: Recorded) -> str:
    name: str = event["op"].strip("_")
    return name


def _arguments(event: Recorded) -> dict[str, Any]:
    """All that is known of an event; a place in a file as file:line."""
    arguments = {name: value for name, value in event.items() if name not in _HEAD}
    for name in ("where", "called_from"):
        if arguments.get(name) is not None:
            arguments[name] = "{}:{} in {}".format(*arguments[name])
    return arguments
