"""The laws of a watch in a terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from conformance.watch.judging.laws import AS_EXPECTED, LAWS, Law


def listing() -> RenderableType:
    """All of them: what each says, its property, and the value that a script which breaks it shows."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column()
    table.add_row(Text("watch", "bold"), Text("Scripts that are watched, by `conformance watch`", "bold"))
    for law in LAWS.values():
        says = Text(law.says, "" if "MUST" in law.says else "yellow")
        table.add_row(Text(f"  {law.id}"), Text.assemble(says, "\n", (settled_by(law), "dim")))
    return table


def settled_by(law: Law) -> str:
    """The property of a law, and what to state where a script breaks it on purpose."""
    if law.id == AS_EXPECTED:
        return "each property"
    if law.value is None:
        return f"{law.property.value}: no option makes this right"
    return f"{law.property.value}: if intended, --expect {law.property.value}={law.value}"


def explained(name: str) -> RenderableType | None:
    """One of them in full, all for `watch`, or None."""
    if name == "watch":
        return listing()
    law = LAWS.get(name)
    if law is None:
        return None
    of = Text.assemble(("Property  ", "dim"), settled_by(law))
    lines = (Text(law.id, "bold"), Text(law.says, "bold"), Text(law.why), of, Text(f"Fix: {law.fix}"))
    return Group(*(part for line in lines for part in (line, Text(""))))
