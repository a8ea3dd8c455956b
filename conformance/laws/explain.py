"""The laws in a terminal: all of them in a table, or one in full."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from conformance.laws.chapters import CHAPTERS
from conformance.laws.law import Law, laws

#: What a law that gives way to right numbers says of them.
HARMLESS = "The trainer does the same in another way, and this law is not reported."


class UnknownLaw(Exception):
    """No law and no chapter has this name. The message suggests similar ones."""


def listing(chapters: Iterable[str] = CHAPTERS) -> RenderableType:
    """The laws of these chapters, one line each."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column()
    for chapter in chapters:
        of_chapter = [law for law in laws() if law.chapter == chapter]
        if of_chapter:
            table.add_row(Text(chapter, "bold"), Text(CHAPTERS[chapter], "bold"))
        for law in of_chapter:
            says = Text(law.says, "" if law.level == "MUST" else "yellow")
            table.add_row(Text(f"  {law.id}"), Text.assemble(says, "\n", (f"in a watch: {in_a_watch(law)}", "dim")))
    return table


def in_a_watch(law: Law) -> str:
    """By which laws a watch checks it, and what of it none sees."""
    by = ", ".join(law.watched) or "not checked"
    return f"{by}. {law.unwatched}" if law.unwatched else by


def explained(name: str) -> RenderableType:
    """One law in full, or a chapter's listing.

    Raises:
        UnknownLaw: no law and no chapter has this name.
    """
    if name in CHAPTERS:
        return listing([name])
    found = next((law for law in laws() if law.id == name), None)
    if found is None:
        raise UnknownLaw(_unknown(name))
    return _in_full(found)


def _in_full(law: Law) -> RenderableType:
    return Group(
        Text.assemble((law.id, "bold"), f"  {CHAPTERS[law.chapter]}"),
        Text(""),
        Text(law.says, "bold"),
        Text(""),
        Text(law.why),
        Text(""),
        *([Text.assemble(("Where the numbers are right  ", "dim"), law.latent), Text("")] if law.latent else []),
        *([Text.assemble(("Where the numbers are right  ", "dim"), HARMLESS), Text("")] if law.gives_way else []),
        *([Text.assemble(("Not reported beside  ", "dim"), ", ".join(law.unless)), Text("")] if law.unless else []),
        Text.assemble(("In a watch  ", "dim"), in_a_watch(law)),
        Text(""),
        Text.assemble(("Source  ", "dim"), law.source),
        Text(""),
        Text("Right", "dim"),
        Padding(Syntax(law.fix, "python", background_color="default"), (0, 0, 0, 2)),
    )


def _unknown(name: str) -> str:
    ids = [law.id for law in laws()]
    # Users often leave out the chapter.
    by_name = {id.partition("/")[2]: id for id in ids}
    near = [by_name.get(match, match) for match in get_close_matches(name, [*ids, *by_name, *CHAPTERS], n=2)]
    meant = f"did you mean {' or '.join(dict.fromkeys(near))}?" if near else "`conformance laws` lists them"
    return f"there is no law {name!r}: {meant}"
