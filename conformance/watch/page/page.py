"""Writes the page."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from conformance.report.text import visible
from conformance.watch.judging.findings import Findings
from conformance.watch.judging.history import CURVES
from conformance.watch.page.curves import HEIGHT, WIDTH, drawing
from conformance.watch.verdict import verdict

_TONES = {"CONFORMS": "good", "DOES NOT CONFORM": "bad", "UNDECIDED": "doubt"}

NAME = "conformance-watch.html"


def write(findings: Findings, command: Sequence[str], folder: Path) -> Path:
    """The page, in this folder. Raises OSError if it cannot be written."""
    environment = Environment(
        loader=PackageLoader("conformance.watch.page"), autoescape=True, undefined=StrictUndefined, finalize=_shown
    )
    decided = verdict(findings)
    text = environment.get_template("page.html.j2").render(
        command=shlex.join(command),
        verdict=decided,
        tone=_TONES[decided],
        findings=findings,
        names=CURVES,
        drawing=drawing,
        size=f"0 0 {WIDTH} {HEIGHT}",
        style=Markup(files("conformance.report").joinpath("assets/report.css").read_text("utf-8")),
    )
    path = folder / NAME
    path.write_text(text, encoding="utf-8", errors="backslashreplace")
    return path


def _shown(value: object) -> object:
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value
