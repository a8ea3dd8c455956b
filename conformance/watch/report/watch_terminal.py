"""Prints a watch in the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from conformance.report.terminal import print_card
from conformance.report.text import STYLES, one_line, print_beside
from conformance.watch.judging.findings import Findings
from conformance.watch.report.digest import digest, first_line, lacks, table
from conformance.watch.report.watch_cards import open_cards
from conformance.watch.verdict import Expected, Outcome, outcome

_TONES = {"PROVEN": "good", "WRONG": "bad", "OPEN": "doubt"}


def render(findings: Findings, command: Sequence[str], console: Console, expected: Expected | None = None) -> None:
    """Prints the verdict, each problem, and a row for each property."""
    whole, of = digest(findings, command, expected), outcome(findings, expected)
    style = f"bold {STYLES[whole.summary.tone]}"
    verdict, said = first_line(whole, command)
    print_beside(Text(), Text.assemble((verdict, style), said), console)
    shown = [*whole.cards, *open_cards(of.rows, findings)]
    for card in shown:
        print_card(card, console, has_verdict=False)
    if shown:
        console.print()
    _print_rows(of, findings, console)
    for lack in lacks(findings):
        print_beside(Text("  "), Text(f"not seen: {one_line(lack)}"), console)


def _print_rows(of: Outcome, findings: Findings, console: Console) -> None:
    rows = [*table(of, findings)]
    names = max((len(name) for name, _, _ in rows), default=0)
    states = max((len(state) for _, state, _ in rows), default=0)
    for name, state, texts in rows:
        head = Text.assemble(f"  {name:{names}}  ", (f"{state:{states}}", STYLES[_TONES[state]]), "  ")
        for text in texts:
            print_beside(head, Text(one_line(text)), console)
            head = Text(" " * head.cell_len)
