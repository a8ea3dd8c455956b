"""Traces in the terminal, in the order of time, and in Chrome's format, which Perfetto opens.

https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU

There a rank is a process, and has a lane for each kind of event. Most events have no duration, and Perfetto draws those
without their name: the name of the lane says what they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias

from rich.console import Console
from rich.table import Table
from rich.text import Text

from conformance.laws.law import Broken, Law
from conformance.trace.events import Collective, Event
from conformance.verdict.timeline import STILL, joined

from .text import visible

Drawn: TypeAlias = dict[str, Any]

WINDOWS, PROCESS, COLLECTIVES = "windows", "process", "collectives"
_ENTERED = ("autocast", "no_sync", "skip_synchronize", "scale_loss")
SPANS = {
    "backward_begin": "backward",
    "backward_end": "backward",
    **{f"{name}_enter": name for name in _ENTERED},
    **{f"{name}_exit": name for name in _ENTERED},
}
"""Kinds of event that begin or end something, and what. Each has its own lane, because they need not nest."""

_BEGINS = ("_begin", "_enter")
_HEAD = ("event", "rank", "time")
_SHORTEST = 1.0
"""Microseconds for which a collective is drawn. Only its start is known, but arrows need a duration."""


class _Lanes:
    """The lanes of every rank, from the top: broken laws, then kinds of event in the order in which they first came."""

    def __init__(self, ranks: Sequence[Sequence[Event]], broken: Sequence[tuple[Law, Broken]]) -> None:
        lanes = (_lane(event) for events in ranks for event in events)
        self.titles = tuple(dict.fromkeys((*(_title(law) for law, _ in broken), WINDOWS, PROCESS, *lanes)))
        self._numbers = {title: number for number, title in enumerate(self.titles, start=1)}

    def of(self, title: str, rank: int) -> Drawn:
        """The lane of a rank that has this title.

        No lane has the number 0 or that of its process: Perfetto 52 takes both for the process's main thread and draws
        them as one lane. See https://github.com/thoren-d/tracing-chrome/issues/32.
        """
        return {"pid": rank, "tid": rank * len(self.titles) + self._numbers[title]}


def chrome(case: str, ranks: Sequence[Sequence[Event]], broken: Sequence[tuple[Law, Broken]] = ()) -> dict[str, Any]:
    """The object to write as JSON: a process for each rank, arrows between ranks in one collective, and a lane for each
    law in `broken`, with a mark wherever it was broken."""
    began = min((event.time for events in ranks for event in events), default=0.0)
    lanes = _Lanes(ranks, broken)
    drawn: list[Drawn] = []
    for rank, events in enumerate(ranks):
        drawn += _names(rank, case, lanes)
        drawn += _windows(rank, events, lanes, began)
        drawn += _rank(rank, events, lanes, began)
    drawn += (_mark(law, how, lanes, began) for law, how in broken)
    drawn += _arrows(ranks, lanes, began)
    return {"traceEvents": drawn, "displayTimeUnit": "ms", "otherData": {"case": case}}


def _names(rank: int, case: str, lanes: _Lanes) -> Iterator[Drawn]:
    process = {"ph": "M", **lanes.of(PROCESS, rank)}
    yield {**process, "name": "process_name", "args": {"name": f"rank {rank} of {case}"}}
    yield {**process, "name": "process_sort_index", "args": {"sort_index": rank}}
    for number, title in enumerate(lanes.titles):
        thread = {"ph": "M", **lanes.of(title, rank)}
        yield {**thread, "name": "thread_name", "args": {"name": title}}
        yield {**thread, "name": "thread_sort_index", "args": {"sort_index": number}}


def _windows(rank: int, events: Sequence[Event], lanes: _Lanes, began: float) -> Iterator[Drawn]:
    """Windows with their micro-batches in them, each from its forward to the next one's."""
    at = lanes.of(WINDOWS, rank)
    opened: list[str] = []
    for event in events:
        here = _progress(event)
        if here != opened:
            ts = _microseconds(event.time, began)
            shared = 1 if here[:1] == opened[:1] else 0
            yield from ({"ph": "E", **at, "ts": ts, "name": name} for name in reversed(opened[shared:]))
            yield from ({"ph": "B", **at, "ts": ts, "name": name} for name in here[shared:])
            opened = here
    for name in reversed(opened):
        yield {"ph": "E", **at, "ts": _microseconds(events[-1].time, began), "name": name}


def _rank(rank: int, events: Sequence[Event], lanes: _Lanes, began: float) -> Iterator[Drawn]:
    """A span without an end ends with the trace; one without a beginning is left out."""
    opened = dict.fromkeys(SPANS.values(), 0)
    for event in events:
        lane = _lane(event)
        at = {**lanes.of(lane, rank), "ts": _microseconds(event.time, began), "args": _arguments(event)}
        if lane == COLLECTIVES:
            yield {"ph": "X", **at, "cat": event.event, "name": event.label, "dur": _SHORTEST}
        elif event.event not in SPANS:
            yield {"ph": "i", "s": "t", **at, "cat": event.event, "name": event.label}
        elif event.event.endswith(_BEGINS):
            opened[lane] += 1
            yield {"ph": "B", **at, "name": lane}
        elif opened[lane]:
            opened[lane] -= 1
            yield {"ph": "E", **at, "name": lane}
    for span, count in opened.items():
        for _ in range(count):
            yield {"ph": "E", **lanes.of(span, rank), "ts": _microseconds(events[-1].time, began), "name": span}


def _mark(law: Law, broken: Broken, lanes: _Lanes, began: float) -> Drawn:
    event = broken.event
    arguments = {
        "says": law.says,
        "contradiction": broken.contradiction,
        "effect": broken.effect,
        "shows": [f"rank {shown.rank}: {shown}" for shown in broken.shows],
        "fix": law.fix.splitlines(),
    }
    at = {**lanes.of(_title(law), event.rank), "ts": _microseconds(event.time, began), "args": arguments}
    return {"ph": "i", "s": "t", **at, "cat": law.level, "name": law.id}


def _arrows(ranks: Sequence[Sequence[Event]], lanes: _Lanes, began: float) -> Iterator[Drawn]:
    for number, group in enumerate(joined(ranks)):
        for event in group:
            phase = "s" if event is group[0] else "f" if event is group[-1] else "t"
            arrow = {"ph": phase, "id": number, "cat": COLLECTIVES, "name": group[0].label}
            where = {**lanes.of(COLLECTIVES, event.rank), "ts": _microseconds(event.time, began)}
            yield {**arrow, **where, **({"bp": "e"} if phase == "f" else {})}


def _title(law: Law) -> str:
    return f"{'broken' if law.level == 'MUST' else 'warning'}: {law.id}"


def _lane(event: Event) -> str:
    if isinstance(event, Collective):
        return COLLECTIVES
    return PROCESS if isinstance(event, STILL) else SPANS.get(event.event, event.event)


def _progress(event: Event) -> list[str]:
    """The window and the micro-batch that an event is in, as far as they are known."""
    names = {"window": event.window, "micro-batch": event.micro_batch}
    return [f"{name} {number}" for name, number in names.items() if number is not None]


def _microseconds(time: float, began: float) -> float:
    return round((time - began) * 1e6, 3)


def _arguments(event: Event) -> dict[str, Any]:
    """The recorded fields of an event: a line as file:line, text of several lines as a list, because Perfetto does not
    break lines."""
    arguments = {name: value for name, value in vars(event).items() if name not in _HEAD}
    for name, value in arguments.items():
        if name in ("where", "called_from") and value is not None:
            arguments[name] = "{}:{} in {}".format(*value)
        elif isinstance(value, str) and "\n" in value:
            arguments[name] = value.splitlines()
    return arguments


COLOURS = ("cyan", "yellow", "magenta", "green", "blue", "red")


def render_trace(ranks: Iterable[Sequence[Event]], console: Console) -> None:
    """Prints the events of all `ranks` by time, one line each."""
    events = sorted((event for events in ranks for event in events), key=lambda event: event.time)
    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("ms", "rank", "seq", "window", "batch"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("event", overflow="fold")
    table.add_column("called at", overflow="fold", style="dim")
    for event in events:
        table.add_row(
            f"{(event.time - events[0].time) * 1e3:.3f}",
            Text(str(event.rank), COLOURS[event.rank % len(COLOURS)]),
            str(event.seq),
            _number(event.window),
            _number(event.micro_batch),
            Text(visible(event.label)),
            Text("" if event.where is None else visible(event.line)),
        )
    console.print(table)


def _number(value: int | None) -> str:
    return "" if value is None else str(value)
