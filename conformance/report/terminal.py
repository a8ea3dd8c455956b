"""The summary of a run in the terminal: one table, what failed, the verdict, and of how much it is one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, TypeAlias

from rich.columns import Columns
from rich.console import Console
from rich.text import Text

from conformance.results import Results
from conformance.results.records import NOT_CONFORMING, NOT_RUN, PASSED

from .behaviour import behaviour, in_terminal
from .card import CaseCard, cards
from .console import STYLES
from .findings import coverage, warnings
from .grouping import Alike, overall, reasons
from .laws import breaches, checked, unchecked
from .matrix import tables
from .printing import print_card, title
from .summary import extent, scope, scopes, summary
from .text import one_line, plural, visible

#: How much is printed: the verdict and a line for each cause, what a reader needs, or all there is.
Detail: TypeAlias = Literal["quiet", "normal", "verbose"]

MOST_CAUSES = 12


def render_notes(notes: Sequence[str], console: Console) -> None:
    """Prints the notes of a header: what a reader should know first."""
    for note in notes:
        console.print(Text(visible(note), "bold yellow"))


def render_terminal(
    results: Results, console: Console, report: str | Path | None = None, detail: Detail = "normal"
) -> None:
    """Prints the summary of `results`, and at the end where the HTML `report` is."""
    # What most cases have comes first: the report orders by verdict.
    causes = sorted(cards(results), key=lambda card: -len(card.cases))
    if detail == "quiet":
        for card in causes:
            cases = one_line(f"  ({plural(len(card.cases), 'case')}: {card.scope})")
            console.print(Text.assemble(title(card), (cases, "dim")), soft_wrap=True)
        _print_verdict(results, console)
        return
    for table in tables(results, console, in_full=detail == "verbose"):
        console.print(table)
    if results.passed + results.failed:
        counts = [*_counts(results, PASSED + NOT_CONFORMING)]
        console.print(Columns(counts, padding=(0, 3)))
    shown = causes if detail == "verbose" else causes[:MOST_CAUSES]
    for card in shown:
        print_card(card, console, _known_bug(card))
    if rest := causes[len(shown) :]:
        cases = plural(len({id(case) for card in rest for case in card.cases}), "case")
        console.print(Text(f"\n{plural(len(rest), 'more cause')}, of {cases}: --verbose shows all", "dim"))
    _print_notices(results, console, detail)
    console.print()
    _print_verdict(results, console)
    _print_extent(results, console, detail)
    if report is not None:
        console.print(Text(f"Report: {one_line(str(report))}"), soft_wrap=True)


def _counts(results: Results, verdicts: Sequence[str]) -> Iterator[Text]:
    for look, count in overall(results):
        if look.verdict in verdicts:
            yield Text.assemble((look.glyph, STYLES[look.tone]), f" {count} {look.verdict}")


def _known_bug(card: CaseCard) -> Iterator[Text]:
    if card.example.explained_by:
        yield Text(f"known bug: {one_line(', '.join(card.example.explained_by))}", "dim")


def _print_notices(results: Results, console: Console, detail: Detail) -> None:
    """What passes and should be known, in full what does not run, too."""
    done = [*in_terminal(behaviour(results), warnings_only=detail == "normal")]
    if done:
        console.print(Text("\nBehaviour: what may be done in several right ways", "bold"), *done, sep="\n")
    if should := [*warnings(breaches(results, "SHOULD"))]:
        console.print(Text("\nWarnings: laws that say SHOULD\n", "bold"), *should, sep="\n")
    # Where nothing ran, the reason is what the reader needs.
    nothing_ran = all(case.verdict in NOT_RUN for case in results.cases)
    if idle := reasons(results) if detail == "verbose" or nothing_ran else []:
        console.print(Text("\nWhat did not run (never counts as passed)\n", "bold"), *map(_reason, idle), sep="\n")


def _print_verdict(results: Results, console: Console) -> None:
    whole = summary(results)
    if results.cut_off:
        console.print(Text(f"INCOMPLETE: {results.cut_off}. This is not evidence of conformance.", "bold yellow"))
    console.print(Text.assemble((whole.title, f"bold {STYLES[whole.tone]}"), f"  {whole.detail}"))


def _print_extent(results: Results, console: Console, detail: Detail) -> None:
    """Of how much the verdict is one."""
    for sentence in scopes(results) if detail == "verbose" else filter(None, [scope(results)]):
        console.print(Text(one_line(sentence)))
    if (ran := extent(results, briefly=detail == "normal")) is not None:
        console.print(Text(ran))
    if results.not_run:
        lists = "" if detail == "verbose" else "; --verbose lists why"
        console.print(Text.assemble("Not run: ", Text(", ").join(_counts(results, NOT_RUN)), lists))
    for law in unchecked(results):
        console.print(Text(one_line(f"{law.says} in the report"), "bold yellow"))
    if results.passed + results.failed and results.header.laws:
        console.print(coverage(checked(results), in_full=detail == "verbose"))


def _reason(reason: Alike) -> Text:
    line = f"{reason.look.glyph} {reason.look.verdict}  {plural(len(reason.cases), 'case')}: "
    return Text.assemble((line, "dim"), visible(reason.text))
