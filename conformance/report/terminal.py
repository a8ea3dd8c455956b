"""The summary of a run in the terminal: one table, what failed, the verdict, and of how much it is one."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal, TypeAlias

from rich.columns import Columns
from rich.console import Console
from rich.table import Table
from rich.text import Text

from conformance.results import Results
from conformance.results.records import NOT_CONFORMING, NOT_RUN, PASSED, CaseRecord

from .behaviour import behaviour, in_terminal
from .card import Card, cards
from .grouping import Alike, grouped, overall, precisions, reasons, tally, trainers
from .laws import Breach, Checked, breaches, checked, unchecked
from .summary import extent, scope, scopes, summary
from .text import STYLES, one_line, plural, print_beside, visible
from .verdicts import LOOKS

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
        bugs = one_line(", ".join(card.example.explained_by))
        print_card(card, console, [Text(f"known bug: {bugs}", "dim")] if bugs else ())
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


#: More rows than this, and there is one for each trainer and backend in place of one for each of their paths.
MOST_ROWS = 16
_GAP = 2


def tables(results: Results, console: Console, *, in_full: bool = False) -> Iterator[Table]:
    """One table; more, one below the other, only where its columns do not fit into the console.

    Its rows and columns are those on which something ran, `in_full` with all paths. No cell is ever broken.
    """
    ran = [case for case in results.cases if case.verdict not in NOT_RUN]
    columns = [name for name in precisions(results) if any(case.precision == name for case in ran)]
    rows = _rows(results, in_full=in_full)
    names = max((Text(name).cell_len for name, _ in rows), default=0)
    cells = {column: [_cell(cases, column) for _, cases in rows] for column in columns}
    for some in _fitting(columns, cells, console.width - names):
        table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, _GAP, 0, 0))
        table.add_column("", no_wrap=True)
        for column in some:
            table.add_column(_heading(column), no_wrap=True)
        for index, (name, cases) in enumerate(rows):
            table.add_row(Text(name, "" if cases else "bold"), *(cells[column][index] for column in some))
        yield table


def _rows(results: Results, *, in_full: bool) -> list[tuple[str, Sequence[CaseRecord]]]:
    """Names, and the cases that ran; none in the heading of a trainer's paths."""
    found = [trainer for trainer in trainers(results) if trainer.ran]
    paths: list[tuple[str, Sequence[CaseRecord]]] = []
    for trainer in found:
        paths += [(one_line(trainer.name), ())] if len(found) > 1 else []
        indent = "  " if len(found) > 1 else ""
        paths += [(indent + one_line(path.name), _that_ran(path.cases)) for path in trainer.ran]
    if in_full or len(paths) <= MOST_ROWS:
        return paths
    rows: list[tuple[str, Sequence[CaseRecord]]] = []
    for trainer in found:
        backends = grouped(_that_ran(trainer.cases), lambda case: (case.backend, case.device))
        for (backend, device), cases in backends.items():
            where = [part for part in (backend, device) if part != "cpu" and (len(backends) > 1 or part == device)]
            rows.append((" ".join([one_line(trainer.name), *map(one_line, where)]), cases))
    return rows


def _that_ran(cases: Sequence[CaseRecord]) -> Sequence[CaseRecord]:
    return [case for case in cases if case.verdict not in NOT_RUN]


def _cell(of_row: Sequence[CaseRecord], precision: str) -> Text:
    """How many passed, exactly and within a bound; else how many of all have the worst verdict: `≠ 1/33`."""
    cases = [case for case in of_row if case.precision == precision]
    if not cases:
        return Text("·" if of_row else "", "dim")
    counts = tally(case.verdict for case in cases)
    worst, count = counts[0]
    if worst.verdict in PASSED:
        return Text(" ").join(
            Text.assemble((look.glyph, STYLES[look.tone]), f" {number}") for look, number in reversed(counts)
        )
    share = f" {count}" if count == len(cases) else f" {count}/{len(cases)}"
    return Text.assemble((worst.glyph, STYLES[worst.tone]), share)


def _heading(precision: str) -> Text:
    """Broken at its hyphens, as numbers are narrower."""
    return Text(one_line(precision).replace("-", "-\n"))


def _fitting(columns: Sequence[str], cells: dict[str, list[Text]], width: int) -> Iterator[list[str]]:
    """The columns, in groups that fit into the width beside the names; at least one in each."""
    some: list[str] = []
    used = 0
    for column in columns:
        lines = [*_heading(column).split("\n"), *cells[column]]
        needs = max(line.cell_len for line in lines) + _GAP
        if some and used + needs > width:
            yield some
            some, used = [], 0
        some.append(column)
        used += needs
    if some:
        yield some


def print_card(card: Card, console: Console, more: Iterable[Text] = ()) -> None:
    """more: lines below the one that says where it is so."""
    console.print()
    print_beside(Text(), title(card), console)
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
    for text in body:
        print_beside(Text("  "), text, console)
    # What may be copied keeps its lines, however long.
    if card.fix:
        console.print(Text("  fix:", "bold"))
        console.print(Text(textwrap.indent(visible(card.fix), "    "), "green"), soft_wrap=True)
    for _, command in card.commands:
        console.print(Text(f"  $ {one_line(command)}", "cyan"), soft_wrap=True)


def title(card: Card) -> Text:
    look = LOOKS[card.verdict]
    return Text.assemble((f"{look.glyph} {look.verdict}", STYLES[look.tone]), "  ", (one_line(card.title), "bold"))


def warnings(breaches: Sequence[Breach]) -> Iterator[Text]:
    """A line for each broken SHOULD."""
    for breach in breaches:
        finding, example = breach.finding, breach.cases[0]
        yield Text.assemble(
            ("! ", "yellow"),
            (one_line(finding.law), "yellow"),
            f"  {one_line(example.trainer)}, {plural(len(breach.cases), 'case')}: {visible(finding.says)}",
            (f"  {one_line(finding.where)}" if finding.where else "", "dim"),
        )


def coverage(laws: Sequence[Checked], *, in_full: bool) -> Text:
    """How many laws this run checked, and `in_full` which it could not have broken."""
    idle = [law for law in laws if not law.windows]
    exercised = {law.chapter for law in laws if law.windows}
    names = dict.fromkeys(law.law.law if law.chapter in exercised else f"{law.chapter}/*" for law in idle)
    text = f"Laws: {len(laws) - len(idle)} of {len(laws)} exercised"
    if not in_full:
        return Text(f"{text}; the others are not shown to hold." if idle else text, "dim")
    return Text(text + (f"; not exercised, so not shown to hold: {', '.join(names)}" if idle else ""), "dim")
