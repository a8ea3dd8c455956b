"""The table of a run in the terminal: how many cases have which verdict, by path and precision."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from conformance.results import Results
from conformance.results.records import NOT_RUN, PASSED, CaseRecord

from .console import STYLES
from .grouping import grouped, precisions, tally, trainers
from .text import one_line

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
