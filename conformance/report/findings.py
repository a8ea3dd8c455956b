"""Broken laws in the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from conformance.results.records import Finding, Moment

from .laws import Breach, Checked
from .text import one_line, plural, visible

_MOST = 3


def explained(findings: Sequence[Finding]) -> Group:
    """The first findings of a case in full."""
    shown = [part for finding in findings[:_MOST] for part in _parts(finding)]
    rest = len(findings) - _MOST
    return Group(*shown, *([Text(f"and {plural(rest, 'broken law')} more: see the report", "dim")] if rest > 0 else []))


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


def coverage(laws: Sequence[Checked]) -> Text:
    """How many laws this run checked, and which it could not have broken."""
    idle = [law for law in laws if not law.windows]
    exercised = {law.chapter for law in laws if law.windows}
    names = dict.fromkeys(law.law.law if law.chapter in exercised else f"{law.chapter}/*" for law in idle)
    text = f"Laws: {len(laws) - len(idle)} of {len(laws)} exercised"
    return Text(text + (f"; not exercised, so not shown to hold: {', '.join(names)}" if idle else ""), "dim")


def _parts(finding: Finding) -> Iterator[RenderableType]:
    often = f"  {plural(finding.count, 'time')}" if finding.count > 1 else ""
    yield Text.assemble((one_line(finding.law), "bold"), "  ", visible(finding.says), (often, "dim"))
    if finding.where:
        yield Text.assemble(("at: ", "bold"), one_line(finding.where))
    yield Text(visible(finding.contradiction))
    yield Padding(_slice(finding.slice), (0, 0, 0, 2))
    if finding.effect:
        yield Text.assemble(("effect: ", "bold"), visible(finding.effect))
    if finding.observed:
        yield Text.assemble(("observed: ", "bold"), visible(finding.observed))
    yield Text("fix:", "bold")
    yield Padding(Text(visible(finding.fix), "green"), (0, 0, 0, 2))


def _slice(moments: Sequence[Moment]) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for moment in moments:
        mark, style = ("▶", "bold red") if moment.marked else (" ", "")
        table.add_row(
            Text(f"rank {moment.rank}", "dim"),
            Text(f"{mark} {visible(moment.label)}", style),
            Text(visible(moment.where or ""), "dim"),
        )
    return table
