"""A run in the terminal: one table, the problems, the verdict and its coverage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, TypeAlias

from rich.columns import Columns
from rich.console import Console
from rich.table import Table
from rich.text import Text

from conformance.results import Results
from conformance.results.result_lines import NOT_CONFORMING, NOT_RUN, PASSED, CaseRecord

from .card import Card, cards
from .choices_table import behaviour, in_terminal
from .grouping import Alike, grouped, overall, precisions, reasons, tally, trainers
from .laws import Breach, Checked, breaches, checked, fault_of, unchecked
from .summary import extent, scope, scopes, subject, summary
from .text import STYLES, one_line, plural, print_beside, visible
from .verdicts import LOOKS

#: What is printed: the verdict and a line for each problem, what a reader needs, or everything.
Detail: TypeAlias = Literal["quiet", "normal", "verbose"]

MOST_PROBLEMS = 12


def render_notes(notes: Sequence[str], console: Console) -> None:
    """Prints the notes of a header."""
    for note in notes:
        console.print(Text(visible(note), "bold yellow"))


def render_terminal(
    results: Results, console: Console, report: str | Path | None = None, detail: Detail = "normal"
) -> None:
    """Prints the verdict on `results`, the problems, the coverage, and last the path of the HTML `report`."""
    problems = cards(results)
    _print_verdict(results, console, len(problems))
    if detail == "quiet":
        for card in problems:
            cases = one_line(f"  ({card.seen_in})")
            title = Text.assemble(*_title(card), (cases, "dim"))
            console.print(title, soft_wrap=True)
        return
    console.print()
    for table in tables(results, console, in_full=detail == "verbose"):
        console.print(table)
    if results.passed + results.failed:
        counts = [*_counts(results, PASSED + NOT_CONFORMING)]
        _print_legend(results, console)
        console.print(Columns(counts, padding=(0, 3)))
        _print_meanings(results, NOT_CONFORMING, console)
    shown = problems if detail == "verbose" else problems[:MOST_PROBLEMS]
    for card in shown:
        print_card(card, console)
    if rest := problems[len(shown) :]:
        cases = plural(len({id(case) for card in rest for case in card.cases}), "case")
        console.print(Text(f"\n{plural(len(rest), 'more problem')} in {cases}: --verbose shows all", "dim"))
    _print_notices(results, console, detail)
    console.print()
    _print_extent(results, console, detail)
    if report is not None:
        console.print(Text(f"Report: {one_line(str(report))}"), soft_wrap=True)


def _counts(results: Results, verdicts: Sequence[str]) -> Iterator[Text]:
    for look, count in overall(results):
        if look.verdict in verdicts:
            yield Text.assemble((look.glyph, STYLES[look.tone]), f" {count} {look.verdict}")


def _print_legend(results: Results, console: Console) -> None:
    """Prints how to read a cell with failures."""
    if results.failed:
        console.print(Text("✗ n of m: n of m cases failed   ·: no case", "dim"))


def _print_meanings(results: Results, verdicts: Sequence[str], console: Console) -> None:
    """Prints the first sentence on each of these verdicts that a case has."""
    for look, _ in overall(results):
        if look.verdict in verdicts:
            said = f"{look.meaning.partition('. ')[0].removesuffix('.')}."
            print_beside(Text(f"  {look.glyph} {look.verdict}: ", "dim"), Text(said, "dim"), console)


def _print_notices(results: Results, console: Console, detail: Detail) -> None:
    """Prints choices and warnings, and in full also what did not run."""
    done = [*in_terminal(behaviour(results), warnings_only=detail == "normal")]
    if done:
        console.print(Text("\nBehaviour: choices where several behaviours are valid", "bold"), *done, sep="\n")
    if should := [*warnings(breaches(results, "SHOULD"))]:
        console.print(Text("\nWarnings: they do not change the verdict\n", "bold"))
        for head, text in should:
            print_beside(head, text, console)
    # If nothing ran, the reader needs the reason.
    nothing_ran = all(case.verdict in NOT_RUN for case in results.cases)
    if idle := reasons(results) if detail == "verbose" or nothing_ran else []:
        console.print(Text("\nNot run (never counts as passed)\n", "bold"), *map(_reason, idle), sep="\n")


def _print_verdict(results: Results, console: Console, problems: int) -> None:
    whole, count = summary(results), f"{plural(problems, 'problem')}." if problems else ""
    of = subject(results)
    if results.cut_off:
        console.print(Text(f"INCOMPLETE: {results.cut_off}. This is not evidence of conformance.", "bold yellow"))
    said = " ".join(filter(None, [f"{of}:" if of else "", count, whole.detail]))
    print_beside(Text(), Text.assemble((f"{whole.title}: ", f"bold {STYLES[whole.tone]}"), said), console)


def _print_extent(results: Results, console: Console, detail: Detail) -> None:
    """Prints the coverage of the verdict."""
    if (ran := extent(results)) is not None:
        console.print(Text(f"Coverage: {ran}"))
    for sentence in scopes(results) if detail == "verbose" else filter(None, [scope(results)]):
        console.print(Text(one_line(sentence)))
    if results.not_run:
        [first, *others] = reasons(results)
        why = "; --verbose lists why" if others else f": {one_line(first.text)}"
        counts = Text(", ").join(_counts(results, NOT_RUN))
        console.print(Text.assemble("Not run: ", counts, "" if detail == "verbose" else why))
        _print_meanings(results, NOT_RUN, console)
    for law in unchecked(results):
        console.print(Text(one_line(f"{law.says} in the report"), "bold yellow"))
    if results.passed + results.failed and results.header.laws:
        console.print(coverage(checked(results), in_full=detail == "verbose"))


def _reason(reason: Alike) -> Text:
    line = f"{reason.look.glyph} {reason.look.verdict}  {plural(len(reason.cases), 'case')}: "
    return Text.assemble((line, "dim"), visible(reason.text))


#: With more rows than this, a row is a trainer and backend instead of a path.
MOST_ROWS = 16
_GAP = 2


def tables(results: Results, console: Console, *, in_full: bool = False) -> Iterator[Table]:
    """One table, or several below each other if its columns do not fit into the console.

    Rows and columns without a case that ran are left out; `in_full` shows all paths. No cell is ever broken.
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
    """Names with the cases that ran; the heading of a trainer's paths has none."""
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
    """How many passed, exactly and within a bound; or how many failed: `✗ 1 of 33`."""
    cases = [case for case in of_row if case.precision == precision]
    if not cases:
        return Text("·" if of_row else "", "dim")
    counts = tally(case.verdict for case in cases)
    worst, _ = counts[0]
    if worst.verdict in PASSED:
        return Text(" ").join(
            Text.assemble((look.glyph, STYLES[look.tone]), f" {number}") for look, number in reversed(counts)
        )
    return Text.assemble((worst.mark, STYLES[worst.tone]), f" {sum(case.failed for case in cases)} of {len(cases)}")


def _heading(precision: str) -> Text:
    """A precision, broken at its hyphens: numbers are narrower."""
    return Text(one_line(precision).replace("-", "-\n"))


def _fitting(columns: Sequence[str], cells: dict[str, list[Text]], width: int) -> Iterator[list[str]]:
    """Groups of columns that fit into the width next to the names, at least one in each."""
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


_OF_PARTS = {"code": "green", "command": "cyan"}
_OF_LINES = {"+": "green", "-": "red", ">": "bold", " ": "dim"}
"""The style of a line of source, by its mark."""


def print_card(card: Card, console: Console, *, has_verdict: bool = True) -> None:
    """Prints a card. Code and commands keep their lines, to be copied. has_verdict: whether the title starts with
    the verdict."""
    console.print()
    print_beside(*_title(card, has_verdict=has_verdict), console)
    if card.seen_in:
        print_beside(Text("  "), Text(one_line(card.seen_in), "dim"), console)
    for label, text, kind in card.parts():
        head = Text(f"  {label}: " if label else "    ", "bold")
        if kind == "link":
            # An address is longer than many terminals are wide; the command prints it.
            console.print(Text.assemble(head, (f"conformance explain {card.law}", f"cyan link {text}")), soft_wrap=True)
            continue
        if kind in ("prose", "place"):
            print_beside(head, Text(one_line(text)), console)
            continue
        for line in visible(text).splitlines() if kind in ("code", "source") else [one_line(text)]:
            style = _OF_LINES.get(line[:1], "") if kind == "source" else _OF_PARTS[kind]
            console.print(Text.assemble(head, (line, style)), soft_wrap=True)
            head = Text(" " * head.cell_len)


def _title(card: Card, *, has_verdict: bool = True) -> tuple[Text, Text]:
    """The verdict and the headline."""
    look = LOOKS[card.verdict]
    mark, space = (f"{look.mark} {look.verdict}", "  ") if has_verdict else (look.mark, " ")
    return Text.assemble((mark, STYLES[look.tone]), space), Text(one_line(card.headline), "bold")


def warnings(breaches: Sequence[Breach]) -> Iterator[tuple[Text, Text]]:
    """The law and the text of each warning."""
    for breach in breaches:
        finding, example = breach.finding, breach.cases[0]
        where, cases = f" ({one_line(finding.where)})" if finding.where else "", plural(len(breach.cases), "case")
        said = f"{one_line(example.trainer)} {visible(fault_of(finding))}{where}: {cases}"
        yield Text(f"! {one_line(finding.law)}  ", "yellow"), Text(said)


def coverage(laws: Sequence[Checked], *, in_full: bool) -> Text:
    """How many laws this run checked; `in_full` names the others."""
    idle = [law for law in laws if not law.windows]
    exercised = {law.chapter for law in laws if law.windows}
    names = dict.fromkeys(law.law.law if law.chapter in exercised else f"{law.chapter}/*" for law in idle)
    rest = f"; not checked: {', '.join(names)}" if in_full and idle else ""
    return Text(f"Laws: {len(laws) - len(idle)} of {len(laws)} checked{rest}", "dim")
