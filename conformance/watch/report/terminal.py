"""A watch in the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from conformance.report.console import STYLES
from conformance.report.printing import print_card
from conformance.report.text import one_line
from conformance.watch.judging.findings import Findings
from conformance.watch.report.digest import WAY_OUT, digest, notes, undecided


def render(findings: Findings, command: Sequence[str], console: Console) -> None:
    """Print the verdict, each cause, what is undecided and what is to be known."""
    whole = digest(findings, command)
    style = f"bold {STYLES[whole.summary.tone]}"
    console.print(Text.assemble((whole.summary.title, style), f": {whole.summary.detail}"))
    for card in whole.cards:
        # The command is the one that has just run.
        print_card(replace(card, commands=()), console)
    reasons = undecided(findings)
    for title, about in (("Undecided:", [*reasons, WAY_OUT] if reasons else []), ("Notes:", notes(findings))):
        if about:
            console.print(Text(f"\n{title}", "bold"))
            for one in about:
                console.print(Padding(Text(one_line(one)), (0, 0, 0, 2), expand=False))
