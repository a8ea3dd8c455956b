"""The page for screen readers and keyboards: names, captions, headings, and a way past the links."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from conformance.report.differences import compared
from conformance.report.html import render_comparison
from conformance.results import Results

from .conftest import Page


def faults(content: str) -> list[str]:
    """The faults of a page."""
    nodes = Page(content).nodes
    ids = {node.attributes.get("id") for node in nodes}
    found = []
    body = next(node for node in nodes if node.tag == "body")
    skip = body.children[0]
    if skip.tag != "a" or skip.attributes.get("href", "#")[1:] not in ids:
        found.append("the first element is no link past the navigation")
    headings = [node for node in nodes if node.tag in ("h1", "h2", "h3", "h4", "h5", "h6")]
    if [node.tag for node in headings].count("h1") != 1:
        found.append("there is not one h1")
    for one, other in pairwise(headings):
        if int(other.tag[1]) > int(one.tag[1]) + 1:
            found.append(f"{other.tag} {other.text!r} follows {one.tag} {one.text!r}")
    for node in nodes:
        name = node.attributes.get("aria-label") or node.text
        if node.tag == "table" and [child.tag for child in node.children].count("caption") != 1:
            found.append(f"a table without a caption: {node.text[:60]}")
        if node.tag in ("a", "button", "summary", "option", "figcaption", "caption") and not name.strip():
            found.append(f"{node.tag} without a name: {node.attributes}")
        if node.tag == "svg" and not (
            node.attributes.get("aria-hidden") == "true"
            or (node.attributes.get("role") == "img" and node.attributes.get("aria-label"))
        ):
            found.append(f"a picture without a name: {node.attributes}")
        if node.tag in ("input", "select") and "label" not in [above.tag for above in node.ancestors]:
            found.append(f"a field without a label: {node.attributes}")
        if node.attributes.get("tabindex") == "0" and not node.attributes.get("aria-label"):
            found.append(f"what can have the focus has no name: {node.attributes}")
        if node.tag == "th" and "scope" not in node.attributes:
            found.append(f"a header cell without a scope: {node.text}")
    return found


def test_a_page_with_every_verdict(html: str) -> None:
    assert faults(html) == []


def test_a_page_of_differences(results: Results, tmp_path: Path) -> None:
    fewer = replace(results, cases=results.cases[40:])
    comparison = compared(fewer, results)
    assert comparison.sections
    render_comparison(comparison, fewer, results, tmp_path / "differences.html")
    assert faults((tmp_path / "differences.html").read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("right", "wrong", "fault"),
    [
        ('<a class="skip" href="#result">', '<a class="skip" href="#nowhere">', "no link past"),
        ('<caption class="hidden">Verdicts by path and precision</caption>', "", "a table without a caption"),
        ('role="img" aria-label="weights by', 'role="img" title="weights by', "a picture without a name"),
        ("<h2>Cases</h2>", "<h4>Cases</h4>", "follows"),
        ('<th scope="col">path</th>', "<th>path</th>", "without a scope"),
        ('aria-label="Matrix" tabindex', "tabindex", "can have the focus"),
        ('<form class="find"', '<select name="loose"></select><form class="find"', "a field without a label"),
    ],
)
def test_a_fault_is_found(html: str, right: str, wrong: str, fault: str) -> None:
    assert right in html
    assert any(fault in one for one in faults(html.replace(right, wrong)))


def test_each_cell_of_the_matrix_says_what_it_counts(html: str) -> None:
    matrix = next(node for node in Page(html).nodes if node.attributes.get("class") == "matrix")
    names = [node.text for node in matrix.all() if node.tag == "a"]
    assert "ddp-w2-acc2, fp32: ✗ 4 of 4" in names
    assert "single, fp64: 1 PASS (bounded) 4 PASS (exact)" in names
