"""JUnit XML of a watch: a test for the verdict, and one for each problem."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree

from conformance.report.ci import document, failing, for_xml
from conformance.watch.judging.findings import Findings
from conformance.watch.report.digest import digest
from conformance.watch.verdict import Expected, verdict


def junit(findings: Findings, command: Sequence[str], expected: Expected | None = None) -> str:
    whole = digest(findings, command, expected)
    tests = [ElementTree.Element("testcase", name="verdict", classname="watch")]
    if (of := verdict(findings, expected)) != "CONFORMS":
        reasons = "\n".join(filter(None, [whole.summary.detail, whole.extent]))
        failing(tests[0], "verdict", of, reasons)
    for card in whole.cards:
        test = ElementTree.Element("testcase", name=for_xml(f"{card.rule} {card.where or ''}"), classname="watch")
        failing(test, card.verdict, card.headline, "\n".join(card.lines()))
        tests.append(test)
    wrong = sum(test.find("failure") is not None for test in tests)
    suite = ElementTree.Element(
        "testsuite", name=for_xml(whole.command), tests=str(len(tests)), failures=str(wrong), errors="0"
    )
    suite.extend(tests)
    return document(whole.tool[0], [suite])
