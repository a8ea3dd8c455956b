"""JUnit XML: a test for each case, as pytest's own, with what a report says of its cause.

https://github.com/testmoapp/junitxml describes the format that CI systems read.
"""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree

from conformance.results import Results
from conformance.results.records import NOT_RUN, CaseRecord

from ..card import CaseCard, cards
from ..grouping import grouped
from ..text import visible

_PROPERTIES = ("verdict", "backend", "layout", "world_size", "accumulation", "precision", "workload", "device")


def junit(results: Results) -> str:
    """A suite for each trainer."""
    # The first card of a case names its other causes.
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
        named = {"name": text(trainer), "timestamp": text(results.header.started)}
        suite = ElementTree.Element("testsuite", named | counts)
        suites.append(suite)
        for case in own:
            suite.append(_test(case, of_case.get(id(case))))
    return document(results.header.tool, suites)


def document(tool: str, suites: Sequence[ElementTree.Element]) -> str:
    root = ElementTree.Element("testsuites", name=text(tool))
    root.extend(suites)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def failing(test: ElementTree.Element, kind: str, message: str, details: str) -> None:
    """Have a test fail."""
    failure = ElementTree.SubElement(test, "failure", type=kind, message=text(message))
    failure.text = text(details)


def _test(case: CaseRecord, card: CaseCard | None) -> ElementTree.Element:
    name, classname = text(case.id), text(f"{case.trainer}.{case.path}")
    test = ElementTree.Element("testcase", name=name, classname=classname, time=_seconds([case]))
    properties = ElementTree.SubElement(test, "properties")
    for one in _PROPERTIES:
        ElementTree.SubElement(properties, "property", name=one, value=text(str(getattr(case, one))))
    if case.verdict in NOT_RUN:
        ElementTree.SubElement(test, "skipped", message=text(f"{case.verdict}: {case.headline}"))
    elif card is not None:
        failing(test, case.verdict, card.title, "\n".join(card.of(case).lines()))
    return test


def _seconds(cases: Sequence[CaseRecord]) -> str:
    return f"{sum(case.seconds or 0.0 for case in cases):.3f}"


def text(text: str) -> str:
    """Without the two characters that `visible` leaves and XML forbids."""
    return visible(text).replace("\ufffe", "").replace("\uffff", "")
