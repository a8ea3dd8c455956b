"""Formats for CI: annotations of GitHub Actions, badges, JUnit XML, Markdown and SARIF, of a run or a watch.

https://docs.github.com/actions/reference/workflows-and-actions/workflow-commands
https://github.com/testmoapp/junitxml (the JUnit XML that CI systems read)
https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from conformance.results import Results
from conformance.results.result_lines import NOT_RUN, CaseRecord

from .card import Card, CaseCard, cards
from .command import relative
from .grouping import grouped, overall
from .laws import page_of
from .signs import KINDS
from .summary import Summary, extent, summary
from .text import escaped, plural, visible

if TYPE_CHECKING:
    from jinja2 import Environment


@dataclass(frozen=True)
class Digest:
    """The content of every format.

    tool: name and version. command: as from `command.shown`. cut_off: why a run that ended early is no evidence.
    rules: the text of each rule of the cards. tally: counts, of ``unit``. extent: the coverage.
    """

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
        rules={law.law: law.says for law in results.header.laws} | KINDS,
        unit="Cases",
        tally=[(f"{look.glyph} {look.verdict}", count) for look, count in overall(results)],
        extent=extent(results),
    )


def workflow_commands(digest: Digest, is_expected: Callable[[Card], bool] = lambda card: False) -> Iterator[str]:
    """A line for each problem, for standard output; an expected failure is a notice, not an error."""
    for card in digest.cards:
        at = {"title": f"{card.verdict}: {card.headline}"}
        if card.own_line is not None:
            at = {"file": card.own_line[0], "line": str(card.own_line[1]), **at}
        properties = ",".join(f"{name}={_as_property(value, ':,')}" for name, value in at.items())
        text = "\n".join([*card.lines()][1:])
        yield f"::{'notice' if is_expected(card) else 'error'} {properties}::{_as_property(text)}"


def _as_property(text: str, more: str = "") -> str:
    text = visible(text)
    for sign in "%\r\n" + more:
        text = text.replace(sign, f"%{ord(sign):02X}")
    return text


_COLOURS = {"good": "#17744a", "bad": "#b9302c", "doubt": "#8f5f00"}
_LABEL = "conformance"
#: The width of a letter of Verdana at 11 pixels, and of the space around a word.
_WIDTH, _SPACE = 6.8, 10


def message(results: Results) -> str:
    """The text of a badge."""
    judged = results.passed + results.failed
    if results.cut_off or not judged:
        return summary(results).title.lower()
    return (
        f"{results.passed} of {plural(judged, 'case')} passed" if results.failed else f"{plural(judged, 'case')} passed"
    )


def endpoint(results: Results) -> str:
    """JSON for https://shields.io/badges/endpoint-badge."""
    colour = _COLOURS[summary(results).tone]
    return json.dumps({"schemaVersion": 1, "label": _LABEL, "message": message(results), "color": colour}) + "\n"


def _templates() -> Environment:
    # A watch makes digests in the process of a trainer, which may have another jinja2.
    from .html import base

    return base()


def svg(results: Results) -> str:
    """A self-contained image."""
    text, colour = message(results), _COLOURS[summary(results).tone]
    left, right = (len(word) * _WIDTH + _SPACE for word in (_LABEL, text))
    badge = _templates().get_template("badge.svg.j2")
    return badge.render(label=_LABEL, text=text, colour=colour, left=left, right=right) + "\n"


_PROPERTIES = ("verdict", "backend", "layout", "world_size", "accumulation", "precision", "workload", "device")


def junit(results: Results) -> str:
    """A suite for each trainer."""
    # The first card of a case names its other problems.
    of_case = {id(case): card for card in reversed(cards(results)) for case in card.cases}
    suites = []
    for trainer, own in grouped(results.cases, lambda case: case.trainer).items():
        counts = {
            "tests": str(len(own)),
            "failures": str(sum(case.failed for case in own)),
            "errors": "0",
            "skipped": str(sum(case.verdict in NOT_RUN for case in own)),
            "time": _seconds(own),
        }
        named = {"name": for_xml(trainer), "timestamp": for_xml(results.header.started)}
        suite = ElementTree.Element("testsuite", named | counts)
        suites.append(suite)
        for case in own:
            suite.append(_test(case, of_case.get(id(case))))
    return document(results.header.tool, suites)


def document(tool: str, suites: Sequence[ElementTree.Element]) -> str:
    root = ElementTree.Element("testsuites", name=for_xml(tool))
    root.extend(suites)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def failing(test: ElementTree.Element, kind: str, message: str, details: str) -> None:
    """Marks a test as failed."""
    failure = ElementTree.SubElement(test, "failure", type=kind, message=for_xml(message))
    failure.text = for_xml(details)


def _test(case: CaseRecord, card: CaseCard | None) -> ElementTree.Element:
    name, classname = for_xml(case.id), for_xml(f"{case.trainer}.{case.path}")
    test = ElementTree.Element("testcase", name=name, classname=classname, time=_seconds([case]))
    properties = ElementTree.SubElement(test, "properties")
    for one in _PROPERTIES:
        ElementTree.SubElement(properties, "property", name=one, value=for_xml(str(getattr(case, one))))
    if case.verdict in NOT_RUN:
        ElementTree.SubElement(test, "skipped", message=for_xml(f"{case.verdict}: {case.headline}"))
    elif card is not None:
        failing(test, case.verdict, card.headline, "\n".join(card.of(case).lines()))
    return test


def _seconds(cases: Sequence[CaseRecord]) -> str:
    return f"{sum(case.seconds or 0.0 for case in cases):.3f}"


def for_xml(text: str) -> str:
    """`text` without the two characters that `visible` leaves and XML forbids."""
    return visible(text).replace("\ufffe", "").replace("\uffff", "")


#: With more problems than this, a reader opens the report.
_MOST = 20


def markdown(digest: Digest) -> str:
    """GitHub's flavour."""
    environment = _templates().overlay(autoescape=False)
    environment.filters.update(escaped=escaped, fenced=_fenced)
    return environment.get_template("summary.md.j2").render(digest=digest, most=_MOST)


def _fenced(text: str, language: str) -> str:
    """A block with a fence that is longer than any in the text."""
    shown = visible(text)
    fence = "```"
    while fence in shown:
        fence += "`"
    return f"{fence}{language}\n{shown}\n{fence}"


_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"


def sarif(digest: Digest) -> str:
    """JSON."""
    name, version = map(visible, digest.tool)
    rules = [
        {"id": visible(rule), "shortDescription": {"text": visible(digest.rules.get(rule, rule))}}
        | ({"helpUri": page_of(law)} if law else {})
        for rule, law in {card.rule: card.law for card in digest.cards}.items()
    ]
    driver = {"name": name, "semanticVersion": version, "rules": rules}
    run = {"tool": {"driver": driver}, "results": [_result(card) for card in digest.cards]}
    return json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, indent=1) + "\n"


def _result(card: Card) -> dict[str, Any]:
    text = "\n".join(card.lines())
    result: dict[str, Any] = {"ruleId": visible(card.rule), "level": "error", "message": {"text": visible(text)}}
    if card.own_line is not None:
        file, line = card.own_line
        uri = visible(Path(relative(file)).as_posix())
        region = {"startLine": line}
        result["locations"] = [{"physicalLocation": {"artifactLocation": {"uri": uri}, "region": region}}]
    return result
