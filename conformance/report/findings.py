"""Laws in the terminal: SHOULDs that were broken, and how many were checked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.text import Text

from .laws import Breach, Checked
from .text import one_line, plural, visible


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
