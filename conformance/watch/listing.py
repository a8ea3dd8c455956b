"""The laws of a watch in a terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from conformance.watch.judging.laws import LAWS


def listing() -> RenderableType:
    """All of them, one line each."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column()
    table.add_row(Text("watch", "bold"), Text("Scripts that are watched, by `conformance watch`", "bold"))
    for law in LAWS.values():
        table.add_row(Text(f"  {law.id}"), Text(law.says, "" if "MUST" in law.says else "yellow"))
    return table


def explained(name: str) -> RenderableType | None:
    """One of them in full, all for `watch`, or None."""
    if name == "watch":
        return listing()
    law = LAWS.get(name)
    if law is None:
        return None
    lines = (Text(law.id, "bold"), Text(law.says, "bold"), Text(law.why), Text(f"Fix: {law.fix}"))
    return Group(*(part for line in lines for part in (line, Text(""))))
