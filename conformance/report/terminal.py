"""The summary of a run in the terminal: the matrix, what failed, what did not run, the totals."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from conformance.results import Results
from conformance.results.records import NOT_RUN, PASSED

from .behaviour import behaviour, in_terminal
from .card import first_difference
from .findings import coverage, explained, warnings
from .grouping import Alike, Cell, Failure, failures, overall, precisions, reasons, trainers
from .laws import breaches, checked, unchecked
from .summary import extent, scopes, summary
from .text import one_line, plural, visible

MOST_CAUSES = 12
KINDS = (("PASS (exact)",), ("PASS (bounded)",), NOT_RUN)
MIXED = "✓ 4 + 1: four cases exact, one within its bound. 1/3: one case of three has this verdict."
STYLES = {"idle": "dim", "good": "green", "near": "cyan", "doubt": "yellow", "setup": "magenta", "bad": "red"}


def render_notes(notes: Sequence[str], console: Console) -> None:
    """Prints the notes of a header: what a reader should know first."""
    for note in notes:
        console.print(Text(visible(note), "bold yellow"))


def render_terminal(results: Results, console: Console, report: str | Path | None = None) -> None:
    """Prints the summary of `results`, and at the end where the HTML `report` is."""
    if results.cases:
        console.print(_matrix(results))
        console.print(Text(MIXED, "dim"))
    _print_causes(results, console)
    sections: tuple[tuple[str, Iterable[RenderableType]], ...] = (
        ("Behaviour: what may be done in several right ways", in_terminal(behaviour(results))),
        ("Warnings: laws that say SHOULD\n", warnings(breaches(results, "SHOULD"))),
        ("What did not run (never counts as passed)\n", map(_reason, reasons(results))),
    )
    for heading, lines in sections:
        if shown := list(lines):
            console.print(Text(f"\n{heading}", "bold"), *shown, sep="\n")
    whole = summary(results)
    console.print()
    if results.cut_off:
        console.print(Text(f"INCOMPLETE: {results.cut_off}. This is not evidence of conformance.", "bold yellow"))
    console.print(Text.assemble((whole.title, f"bold {STYLES[whole.tone]}"), f"  {whole.detail}"))
    for scope in scopes(results):
        console.print(Text(one_line(scope)))
    if (ran := extent(results)) is not None:
        console.print(Text(ran))
    for law in unchecked(results):
        console.print(Text(one_line(f"{law.says} in the report"), "bold yellow"))
    counts = [
        Text.assemble((look.glyph, STYLES[look.tone]), f" {count} {look.verdict}") for look, count in overall(results)
    ]
    console.print(Columns(counts, padding=(0, 3)))
    if results.passed + results.failed and results.header.laws:
        console.print(coverage(checked(results)))
    if report is not None:
        console.print(Text(f"Report: {one_line(str(report))}"))


def _matrix(results: Results) -> Table:
    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 2, 0, 0))
    columns = precisions(results)
    table.add_column("", no_wrap=True)
    for precision in columns:
        table.add_column(Text(one_line(precision)))
    for trainer in trainers(results):
        table.add_row(Text(one_line(trainer.name), "bold"))
        for path in trainer.matrix:
            cells = (path.cells.get(precision) for precision in columns)
            table.add_row(Text("  " + one_line(path.name)), *map(_cell, cells))
    return table


def _cell(cell: Cell | None) -> Text:
    """The worst verdict and how many cases have it; counts if all passed, but some exactly and some in a bound."""
    if cell is None:
        return Text("·", "dim")
    if len(cell.counts) > 1 and cell.look.verdict in PASSED:
        return _mixed(cell)
    return Text.assemble((f"{cell.look.glyph} {cell.look.short}", STYLES[cell.look.tone]), (f" {cell.share}", "dim"))


def _mixed(cell: Cell) -> Text:
    """The counts of a cell that passed, but not in one way: ✓ 4 + 1, which `MIXED` explains."""
    exact, bounded, idle = (sum(count for look, count in cell.counts if look.verdict in kind) for kind in KINDS)
    rest = f", {idle} not run" if idle else ""
    passed = " + ".join(str(count) for count in (exact, bounded) if count)
    return Text.assemble((f"✓ {passed}", "green"), (rest, "dim"))


def _print_causes(results: Results, console: Console) -> None:
    found = failures(results)
    if found:
        console.print(Text("\nWhat failed", "bold"))
    for cause in found[:MOST_CAUSES]:
        verdict = (f"{cause.look.glyph} {cause.look.verdict}", STYLES[cause.look.tone])
        console.print(Text.assemble("\n", verdict, "  ", (one_line(cause.text), "bold")))
        console.print(Padding(_explained(cause), (0, 0, 0, 2), expand=False))
        console.print(Text(f"  $ {one_line(cause.example.command)}", "cyan"), soft_wrap=True)
    if len(found) > MOST_CAUSES:
        rest = sum(len(cause.cases) for cause in found[MOST_CAUSES:])
        console.print(Text(f"\nand {plural(rest, 'case')} with other causes: see the report", "dim"))


def _times(cause: Failure) -> str:
    example = one_line(f"{cause.example.trainer}  {cause.example.id}")
    more = len(cause.cases) - 1
    return f"{example}  (and {plural(more, 'case')} more like it)" if more else example


def _explained(cause: Failure) -> Group:
    """Where and how, effect and fix; then the cases, and the example."""
    case = cause.example
    lines = [Text(_times(cause))]
    if not cause.explains_itself:
        lines.append(Text(visible(case.headline)))
    lines += map(Text, first_difference(case))
    return Group(explained(cause.findings), Text("\n").join(lines))


def _reason(reason: Alike) -> Text:
    line = f"{reason.look.glyph} {reason.look.verdict}  {plural(len(reason.cases), 'case')}: "
    return Text.assemble((line, "dim"), visible(reason.text))
