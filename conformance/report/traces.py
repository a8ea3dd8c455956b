"""Prints traces in the terminal, by time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from conformance.trace.events import Event

from .text import visible

COLOURS = ("cyan", "yellow", "magenta", "green", "blue", "red")


def render_trace(ranks: Iterable[Sequence[Event]], console: Console) -> None:
    """Prints the events of all `ranks`, one line each."""
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
            *("" if number is None else str(number) for number in (event.window, event.micro_batch)),
            Text(visible(event.label)),
            Text("" if event.where is None else visible(event.line)),
        )
    console.print(table)
