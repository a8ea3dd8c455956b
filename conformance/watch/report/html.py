"""Writes the report of a watch: one HTML page that needs no other file, made of the parts of a run's."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from conformance.report.html import base
from conformance.report.text import save
from conformance.watch.judging.findings import Findings
from conformance.watch.judging.history import CURVES, MOST_HISTORIES
from conformance.watch.report.curves import HEIGHT, WIDTH, drawing
from conformance.watch.report.digest import WAY_OUT, digest, notes, undecided

NAME = "conformance-watch.html"
_FEW = 4
"""Of so many optimizers the curves are open."""


def write(findings: Findings, command: Sequence[str], folder: Path) -> Path:
    """The page, in this folder. Raises OSError if it cannot be written."""
    whole = digest(findings, command)
    text = (
        base("conformance.watch.report")
        .get_template("watch.html.j2")
        .render(
            tool=whole.tool,
            whole=whole,
            command=shlex.join(command),
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
    path = folder / NAME
    save(path, text)
    return path
