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
    of_case = {id(case): card for card in cards(results) for case in card.cases}
    root = ElementTree.Element("testsuites", name=results.header.tool)
    for trainer, own in grouped(results.cases, lambda case: case.trainer).items():
        counts = {
            "tests": str(len(own)),
            "failures": str(sum(case.failed for case in own)),
            "errors": "0",
            "skipped": str(sum(case.verdict in NOT_RUN for case in own)),
            "time": _seconds(own),
        }
        named = {"name": _text(trainer), "timestamp": results.header.started}
        suite = ElementTree.SubElement(root, "testsuite", named | counts)
        for case in own:
            suite.append(_test(case, of_case.get(id(case))))
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _test(case: CaseRecord, card: CaseCard | None) -> ElementTree.Element:
    name, classname = _text(case.id), f"{_text(case.trainer)}.{case.path}"
    test = ElementTree.Element("testcase", name=name, classname=classname, time=_seconds([case]))
    properties = ElementTree.SubElement(test, "properties")
    for one in _PROPERTIES:
        ElementTree.SubElement(properties, "property", name=one, value=_text(str(getattr(case, one))))
    if case.verdict in NOT_RUN:
        ElementTree.SubElement(test, "skipped", message=_text(f"{case.verdict}: {case.headline}"))
    elif card is not None:
        failure = ElementTree.SubElement(test, "failure", type=case.verdict, message=_text(card.title))
        failure.text = _text("\n".join(card.of(case).lines()))
    return test


def _seconds(cases: Sequence[CaseRecord]) -> str:
    return f"{sum(case.seconds or 0.0 for case in cases):.3f}"


def _text(text: str) -> str:
    """Without the two characters that `visible` leaves and XML forbids."""
    return visible(text).replace("\ufffe", "").replace("\uffff", "")
