"""The report of a watch: one self-contained HTML page, made of the parts of a run's."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

from markupsafe import Markup

from conformance.report.card import Card
from conformance.report.figure import LEFT, RIGHT, WIDTH, counting, dots, frame, line, linear, steps
from conformance.report.html import base
from conformance.watch.judging.findings import Findings
from conformance.watch.judging.history import CURVES, MOST_HISTORIES, Curve, History
from conformance.watch.judging.properties import Property
from conformance.watch.report.digest import digest, lacks, row_texts, subject
from conformance.watch.report.watch_cards import open_cards
from conformance.watch.verdict import Expected, Outcome, Row, outcome

_HEIGHT = 140
_SPAN = (112, 10)
_MOST_DOTS = 64


def page(findings: Findings, command: Sequence[str], expected: Expected | None = None) -> str:
    whole, of = digest(findings, command, expected), outcome(findings, expected)
    questions = open_cards(of.rows, findings)
    return (
        base("conformance.watch.report")
        .get_template("watch.html.j2")
        .render(
            tool=whole.tool,
            whole=whole,
            headline=_headline(subject(command), whole.summary.title),
            rows=[(row, row_texts(row, findings), _card_of(row, of, questions)) for row in of.listed],
            questions=questions,
            asks_of_rates=any(row.of == Property.SCHEDULE and row.state != "PROVEN" for row in of.rows),
            lacks=lacks(findings),
            histories=[(one.type, curves) for one in findings.histories if (curves := _varying(one))],
            is_cut=len(findings.histories) == MOST_HISTORIES,
            most=MOST_HISTORIES,
            names=CURVES,
            drawing=_drawing,
            size=f"0 0 {WIDTH} {_HEIGHT}",
        )
    )


def _headline(name: str, title: str) -> str:
    if not name:
        return title
    return f"{name}{'' if title in ('CONFORMS', 'DOES NOT CONFORM') else ':'} {title.lower()}"


def _card_of(row: Row, of: Outcome, questions: Sequence[Card]) -> int | None:
    """The number of the first card of a row."""
    if row.wrong:
        return of.causes.index(row.wrong[0]) + 1
    codes = {fact.says.code for fact in row.open}
    return next((len(of.causes) + at for at, one in enumerate(questions, 1) if one.rule in codes), None)


def _varying(history: History) -> dict[str, Curve]:
    """The curves without constants, up to rounding."""
    values = {name: [value for _, value in curve.points if isfinite(value)] for name, curve in history.curves.items()}
    flat = {name for name, of in values.items() if not of or max(of) - min(of) <= 1e-3 * max(map(abs, of))}
    return {name: curve for name, curve in history.curves.items() if name not in flat}


def _drawing(curve: Curve) -> Markup:
    """The inside of an `<svg>` of this width and height. A value that is not finite leaves a gap and a cross."""
    across = counting(max((step for step, _ in curve.points), default=0), LEFT + 6, RIGHT - 4)
    up = linear([value for _, value in curve.points], *_SPAN)
    path = line(across, up, curve.points)
    single, missing = dots(across, up, _SPAN[1], curve.points)
    if len(curve.points) > _MOST_DOTS:
        single = ""
    paths = (("fe", path), ("fo", single), ("fw", missing))
    drawn = "".join(f'<path class="{name}" d="{shape}"/>' for name, shape in paths if shape)
    return Markup(f'{frame(up, _SPAN)}{steps(across, _HEIGHT - 10)}<g class="s0">{drawn}</g>')
