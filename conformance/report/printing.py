"""A card in the terminal, of a run or of a watch."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

from rich.console import Console, Group
from rich.padding import Padding
from rich.text import Text

from .card import Card
from .console import STYLES
from .text import one_line, visible
from .verdicts import LOOKS


def print_card(card: Card, console: Console, more: Iterable[Text] = ()) -> None:
    """more: lines below the one that says where it is so."""
    console.print()
    console.print(title(card))
    body = [Text(f"{card.extent}: {one_line(card.scope)}", "dim"), *more]
    if card.where:
        body.append(Text.assemble(("at: ", "bold"), one_line(card.where)))
    if card.seen:
        body.append(Text.assemble(("seen at: ", "bold"), one_line(card.seen)))
    body += [Text(line, "green") for line in card.source_lines()]
    body += [Text(visible(line)) for line in card.details]
    if card.effect:
        body.append(Text.assemble(("effect: ", "bold"), visible(card.effect)))
    if card.advice:
        body.append(Text.assemble(("fix: ", "bold"), visible(card.advice)))
    body += [Text(f"also: {visible(text)}", "dim") for text in card.also]
    console.print(Padding(Group(*body), (0, 0, 0, 2), expand=False))
    # What may be copied keeps its lines, however long.
    if card.fix:
        console.print(Text("  fix:", "bold"))
        console.print(Text(textwrap.indent(visible(card.fix), "    "), "green"), soft_wrap=True)
    for _, command in card.commands:
        console.print(Text(f"  $ {one_line(command)}", "cyan"), soft_wrap=True)


def title(card: Card) -> Text:
    look = LOOKS[card.verdict]
    return Text.assemble((f"{look.glyph} {look.verdict}", STYLES[look.tone]), "  ", (one_line(card.title), "bold"))
