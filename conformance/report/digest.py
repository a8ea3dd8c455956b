"""What the formats for CI systems say, of a run and of a watch alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from conformance.results import Results

from .card import Card, cards
from .grouping import overall
from .summary import Summary, extent, summary

_KINDS = {
    "setup": "The adapter does not train what the case asks for.",
    "ending": "The case did not end as it should.",
    "guard": "What must hold before numbers mean anything does not.",
    "bug": "The numbers are those of a known bug.",
    "pair": "The numbers are those of two known bugs.",
    "factor": "Gradients or learning rates are wrong by a factor.",
    "factors": "Gradients or learning rates are wrong by factors.",
    "precision": "The numbers are those of a lower precision.",
    "reason": "Nothing can be concluded.",
    "unknown": "The numbers are wrong.",
}
"""What is said of causes that are no laws, by `Cause.kind`."""


@dataclass(frozen=True)
class Digest:
    """tool: name and version. command: what ran, as `command.shown` has it. cut_off: why it is no evidence, if it ended
    early. rules: what the rules of the cards say. tally: of what there are how many, `unit` of them in all. extent: of
    how much this is true."""

    tool: tuple[str, str]
    command: str
    summary: Summary
    cut_off: str | None
    cards: Sequence[Card]
    rules: Mapping[str, str]
    unit: str
    tally: Sequence[tuple[str, int]]
    extent: str | None


def digest(results: Results) -> Digest:
    return Digest(
        tool=(results.header.tool, results.header.version),
        command=results.header.command,
        summary=summary(results),
        cut_off=results.cut_off,
        cards=cards(results),
        rules={law.law: law.says for law in results.header.laws} | _KINDS,
        unit="Cases",
        tally=[(f"{look.glyph} {look.verdict}", count) for look, count in overall(results)],
        extent=extent(results),
    )
