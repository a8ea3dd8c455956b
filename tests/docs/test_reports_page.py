"""The page of published reports agrees with the results files, and each failing case leads to a finding."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from conformance.report.card import Part, cards
from tools.adapter_remarks import Remark, comments
from tools.reports_page import REFERENCE, REPORTS, TABLES, Finding, page, reports, with_table


@pytest.fixture(scope="module")
def published():
    return reports()


def test_the_page_is_up_to_date(published):
    assert (REPORTS / "index.html").read_text() == page(published)
    for file, lines in TABLES.items():
        assert (text := file.read_text()) == with_table(text, lines(published))


def repeated(parts: Iterable[Part]) -> list[str]:
    """The sentences, and the lines of source with their numbers, that a card has twice."""
    said: list[str] = []
    for part in parts:
        is_source = part.kind == "source"
        said += re.findall(r"^. *(\d+ \| .*\S)", part.text, re.MULTILINE) if is_source else [part.text.casefold()]
    return [text for text, times in Counter(said).items() if times > 1]


def test_no_line_of_a_card_says_what_another_one_said(published):
    every = [card for one in published for card in cards(one.results)]
    assert len(every) > 40
    assert [(card.headline, again) for card in every if (again := repeated(card.parts()))] == []


def test_a_line_that_is_said_twice_is_seen(published):
    card = next(card for one in published for card in cards(one.results) if card.edit and card.effect)
    assert repeated([*card.parts(), Part("why", card.effect)]) == [card.effect.casefold()]
    assert repeated([*card.parts(), Part("at", card.edit.code, "source")]) or not card.edit.code


def test_each_report_has_its_page_and_its_link(published):
    text = page(published)
    for one in published:
        assert (REPORTS / f"{one.name}.html").is_file()
        assert f'href="{one.name}.html#matrix"' in text


ADAPTER = """
# It clips nothing,
# and takes "a # b".
@trainer(clips=())
def train(task: Task) -> None:
    # By default, 5.
    engine = Engine("a # b", limit=1)  # type: ignore[arg-type]  # torch 1's class
    engine.fit()  # fmt: skip
"""


def test_remarks_of_an_adapter_are_its_comments_with_the_code_that_they_are_about():
    assert list(comments(ADAPTER)) == [
        Remark('It clips nothing, and takes "a # b".'),
        Remark("By default, 5.", 'engine = Engine("a # b", limit=1)'),
        Remark("torch 1's class", 'engine = Engine("a # b", limit=1)'),
    ]


def test_a_default_that_an_adapter_changes_is_on_the_page(published):
    remarks = {one.name: one.remarks for one in published if one.name not in REFERENCE}
    assert all(made and made[0].text for made in remarks.values())
    shared = Remark("By default, 1.", '"max_grad_norm": task.clip.threshold if task.clip else 0.0,')
    assert [name for name, made in remarks.items() if shared in made] == [
        "sentence-transformers",
        "transformers",
        "trl",
    ]
    assert page(published).count("By default, 1.") == 3


def test_reference_trainers_hold(published):
    assert {one.name for one in published} > set(REFERENCE)
    assert [case.id for one in published if one.name in REFERENCE for case in one.failed] == []


def test_each_failing_case_leads_to_a_finding(published):
    assert [(one.name, case.id) for one in published for case in one.unexplained] == []


def test_a_case_that_no_finding_names_is_seen(published):
    one = next(one for one in published if one.failed)
    assert replace(one, findings=()).unexplained == one.failed


def test_each_finding_has_a_script_of_its_own_that_does_not_import_this_package():
    pages = {page.stem for page in REPORTS.glob("findings/*.md")}
    scripts = {script.stem: script.read_text() for script in REPORTS.glob("findings/*.py")}
    assert pages == scripts.keys()
    assert [name for name, text in scripts.items() if "conformance" in text] == []


@pytest.mark.parametrize("head", ["No report.", "Report: fastai", "Report: fastai\nState: known"])
def test_a_finding_without_its_head_is_refused(tmp_path: Path, head):
    (tmp_path / "x.md").write_text(f"# Something\n\n{head}\n")
    with pytest.raises(ValueError, match=r"start with a title"):
        Finding.read(tmp_path / "x.md")


STATES = {
    "not reported": ("not reported", ""),
    "reported in <https://example.org/issues/1>": ("reported", "https://example.org/issues/1"),
    "fixed in 2.0.1": ("fixed", "2.0.1"),
}


@pytest.mark.parametrize("said", STATES)
def test_the_state_of_a_finding_is_data_and_on_the_page(tmp_path: Path, published, said):
    (tmp_path / "x.md").write_text(f"# Something\n\nReport: fastai\nState: {said}\nCases: *-acc2\n")
    finding = Finding.read(tmp_path / "x.md")
    assert ((finding.state, finding.where), finding.cases) == (STATES[said], ("*-acc2",))
    [fastai] = [one for one in published if one.name == "fastai"]
    text = page([replace(fastai, findings=(finding,))])
    shown = f'<a href="{finding.where}">reported</a>' if finding.state == "reported" else said
    assert f'<a href="findings/x.py">script</a> · {shown}</div>' in text
    assert f"1 {finding.state}." in text


def test_each_finding_has_a_text_for_the_maintainers():
    pages = REPORTS.glob("findings/*.md")
    assert [page.stem for page in pages if "## Report to the maintainers" not in page.read_text()] == []
