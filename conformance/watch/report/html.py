"""The report of a watch: one HTML page that needs no other file, made of the parts of a run's."""

from __future__ import annotations

from collections.abc import Sequence

from conformance.report.html import base
from conformance.watch.judging.findings import Findings
from conformance.watch.judging.history import CURVES, MOST_HISTORIES
from conformance.watch.report.curves import HEIGHT, WIDTH, drawing
from conformance.watch.report.digest import WAY_OUT, digest, notes, undecided

_FEW = 4
"""Of so many optimizers the curves are open."""


def page(findings: Findings, command: Sequence[str]) -> str:
    whole = digest(findings, command)
    return (
        base("conformance.watch.report")
        .get_template("watch.html.j2")
        .render(
            tool=whole.tool,
            whole=whole,
            undecided=undecided(findings),
            way_out=WAY_OUT,
            notes=notes(findings),
            histories=findings.histories,
            few=_FEW,
            most=MOST_HISTORIES,
            names=CURVES,
            drawing=drawing,
            size=f"0 0 {WIDTH} {HEIGHT}",
        )
    )
