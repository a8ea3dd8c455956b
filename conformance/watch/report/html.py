"""The report of a watch: one HTML page that needs no other file, made of the parts of a run's."""

from __future__ import annotations

from collections.abc import Sequence

from conformance.report.html import base
from conformance.watch.judging.findings import Findings
from conformance.watch.judging.history import CURVES, MOST_HISTORIES
from conformance.watch.report.curves import HEIGHT, WIDTH, drawing
from conformance.watch.report.digest import digest, lacks, row_texts
from conformance.watch.verdict import Expected, outcome

_FEW = 4
"""Of so many optimizers the curves are open."""


def page(findings: Findings, command: Sequence[str], expected: Expected | None = None) -> str:
    whole = digest(findings, command, expected)
    return (
        base("conformance.watch.report")
        .get_template("watch.html.j2")
        .render(
            tool=whole.tool,
            whole=whole,
            rows=[(row, row_texts(row)) for row in outcome(findings, expected).rows],
            lacks=lacks(findings),
            histories=findings.histories,
            few=_FEW,
            most=MOST_HISTORIES,
            names=CURVES,
            drawing=drawing,
            size=f"0 0 {WIDTH} {HEIGHT}",
        )
    )
