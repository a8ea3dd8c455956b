"""Prints the laws in a terminal: all in a table, or one in full."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from difflib import get_close_matches

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from conformance.laws.chapters import CHAPTERS
from conformance.laws.chapters.watch_scripts import AS_EXPECTED
from conformance.laws.law import Law, catalogue

#: For laws that correct numbers clear.
HARMLESS = "The trainer gets the same result in another way; the law is not reported."


class UnknownLaw(Exception):
    """No law and no chapter has this name. The message suggests similar ones."""


def listing(chapters: Iterable[str] = CHAPTERS) -> RenderableType:
    """The laws of these chapters, one line each."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column()
    for chapter in chapters:
        table.add_row(Text(chapter, "bold"), Text(CHAPTERS[chapter], "bold"))
        for law in [law for law in catalogue() if law.chapter == chapter]:
            says = Text(law.says, "" if law.level == "MUST" else "yellow")
            of = (f"\n{settled_by(law)}", "dim") if law.shows else ""
            table.add_row(Text(f"  {law.id}"), Text.assemble(says, of))
    return table


def settled_by(law: Law) -> str:
    """The property of a law for scripts, and the option for a script that breaks it on purpose."""
    property, value = law.shows or ("", None)
    if law.id == AS_EXPECTED:
        return "each property"
    if value is None:
        return f"{property}: no option makes this right"
    return f"{property}: if intended, --expect {property}={value}"


def told_beside(law: Law, name: Callable[[str], str] = str) -> Iterator[tuple[str, str]]:
    """Further facts of a law, each with a label. name: formats the id of a law."""
    if law.latent or law.cleared_by_numbers:
        yield "If the numbers are correct", law.latent or HARMLESS
    if law.unless:
        yield "Not reported together with", ", ".join(map(name, law.unless))
    if law.shows:
        yield "Property", settled_by(law)
    if law.source:
        yield "Source", law.source
    if not law.needs_plan:
        yield "Fix", law.fix


def explained(name: str) -> RenderableType:
    """One law in full, or a chapter's listing.

    Raises:
        UnknownLaw: no law and no chapter has this name.
    """
    found = named(name)
    return listing([name]) if name in CHAPTERS else _in_full(*found)


def named(name: str) -> list[Law]:
    """The law of this id, or the laws of a chapter. Raises UnknownLaw."""
    found = [law for law in catalogue() if name in (law.id, law.chapter)]
    if not found:
        raise UnknownLaw(_unknown(name))
    return found


def _in_full(law: Law) -> RenderableType:
    paragraphs: list[RenderableType] = [
        Text.assemble((law.id, "bold"), f"  {CHAPTERS[law.chapter]}"),
        Text(law.says, "bold"),
        Text(law.why),
        *(Text.assemble((f"{label}  ", "dim"), text) for label, text in told_beside(law)),
    ]
    if law.needs_plan:
        snippet = Padding(Syntax(law.fix, "python", background_color="default"), (0, 0, 0, 2))
        paragraphs.append(Group(Text("Right", "dim"), snippet))
    return Group(*[part for paragraph in paragraphs for part in (paragraph, Text(""))][:-1])


def _unknown(name: str) -> str:
    ids = [law.id for law in catalogue()]
    # Users often leave out the chapter. If two laws have the name, suggest the first.
    by_name = {id.partition("/")[2]: id for id in reversed(ids)}
    near = [by_name.get(match, match) for match in get_close_matches(name, [*ids, *by_name, *CHAPTERS], n=2)]
    meant = f"did you mean {' or '.join(dict.fromkeys(near))}?" if near else "`conformance laws` lists them"
    return f"there is no law {name!r}: {meant}"
