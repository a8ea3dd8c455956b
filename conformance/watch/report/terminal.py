"""A watch in the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from conformance.report.terminal import print_card
from conformance.report.text import STYLES, one_line
from conformance.watch.judging.findings import Findings
from conformance.watch.report.digest import digest, lacks, row_texts
from conformance.watch.verdict import Expected, Outcome, outcome

_TONES = {"PROVEN": "good", "WRONG": "bad", "OPEN": "doubt"}


def render(findings: Findings, command: Sequence[str], console: Console, expected: Expected | None = None) -> None:
    """Print the verdict, a row for each property, and each problem."""
    whole, of = digest(findings, command, expected), outcome(findings, expected)
    style = f"bold {STYLES[whole.summary.tone]}"
    console.print(Text.assemble((whole.summary.title, style), f": {one_line(whole.summary.detail)}"))
    console.print(_rows(of))
    for lack in lacks(findings):
        console.print(Padding(Text(f"not seen: {one_line(lack)}"), (0, 0, 0, 2), expand=False))
    for card in whole.cards:
        # The command is the one that has just run.
        print_card(replace(card, commands=()), console)


def _rows(of: Outcome) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column()
    for row in of.rows:
        for number, text in enumerate(row_texts(row)):
            name = f"  {row.of.value}" if number == 0 else ""
            state = Text(row.state if number == 0 else "", STYLES[_TONES[row.state]])
            table.add_row(name, state, Text(one_line(text)))
    return table
