"""Formats for CI say the same as the report, and escape what a trainer wrote."""

from __future__ import annotations

import html
import json
import re
from dataclasses import replace
from io import StringIO
from pathlib import Path
from xml.etree import ElementTree

import jsonschema
import pytest
from rich.console import Console

from conformance.cli import main
from conformance.cli.formats import in_github_actions
from conformance.report.card import Place, cards
from conformance.report.ci import digest, endpoint, junit, markdown, sarif, svg, workflow_commands
from conformance.report.html import render_html
from conformance.report.laws import page_of
from conformance.report.terminal import render_terminal
from conformance.report.text import capitalized, escaped
from conformance.results import Results, read_results
from conformance.results.plain import NON_FINITE
from conformance.results.result_lines import Guard, Reason

#: From https://github.com/oasis-tcs/sarif-spec, without its white space.
SCHEMA = json.loads(Path(__file__).with_name("sarif-schema-2.1.0.json").read_text())


@pytest.fixture
def failing(results) -> Results:
    """A law that a trainer's file breaks, in a run with every verdict."""
    cases = []
    law = {"where": "torch/amp/grad_scaler.py:9, called from src/loop.py:41"}
    law["source"] = ("optimizer.step()", "scaler.step(optimizer)")
    for case in results.cases:
        if case.findings and case.failed:
            findings = tuple(replace(one, **law) for one in case.findings)
            case = replace(case, target="src/loop.py:train", findings=findings)
        cases.append(case)
    return replace(results, cases=tuple(cases))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("call `a_b()`, not [c]", "call `a_b()`, not \\[c\\]"),
        ("`a_b", "\\`a\\_b"),
        ("``<b>``", "\\``<b>`\\`"),
        ("`a|b`", "\\`a\\|b\\`"),
    ],
)
def test_markdown_leaves_code_as_it_is_and_nothing_else(text, shown):
    assert escaped(text) == shown


def test_markdown_has_each_problem_and_each_count(failing):
    text = markdown(digest(failing))
    assert text.startswith(f"## DOES NOT CONFORM: {len(cards(failing))} problems\n")
    assert text.count("\n### ") == len(cards(failing))
    for card in cards(failing):
        assert card.example.id in text.replace("\\", "")
    assert (
        "| ✓ PASS (exact) |" in text
        and "**Fix** call `scaler.unscale_(optimizer)` before you clip\n\n**Edit** " in text
    )


def test_the_lines_to_blame_are_shown_as_they_were(failing, tmp_path):
    [card, *_] = [one for one in cards(failing) if one.own_line]
    assert card.edit.code == "> 41 | scaler.step(optimizer)"
    assert [(place.label, place.code) for place in card.places] == [("inside", "> 9 | optimizer.step()")]
    render_html(failing, tmp_path / "page.html")
    page = html.unescape((tmp_path / "page.html").read_text())
    # A line to change looks different from one to look at.
    edits = [one.edit.role for one in cards(failing) if one.edit and one.edit.code]
    assert page.count('class="cmd source change"') == edits.count("at") > 0
    texts = ("\n".join(card.lines()), markdown(digest(failing)), page)
    assert all(card.edit.code in text and card.places[0].code not in text for text in texts)
    # The title has the trainer's own line, so no other line repeats it.
    assert card.headline.endswith(" (src/loop.py:41)")
    assert "inside: torch/amp/grad_scaler.py:9" in card.lines()
    assert "edit: move my_loop.py:43 above line 41" in card.lines()


def test_a_line_to_blame_stands_between_its_neighbours():
    place = Place("at", "loop.py:10", "loss = f(x)\nloss.backward()\n\n".rstrip())
    assert place.code == "   9 | loss = f(x)\n> 10 | loss.backward()"
    assert Place("at", "loop.py:1", "import torch\nx = 1").code == "> 1 | import torch\n  2 | x = 1"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("step(x)  # type: ignore[arg-type]", "step(x)"),
        ("fit(x)  # fmt: skip", "fit(x)"),
        ("fit(x)  # noqa: E501", "fit(x)"),
        ("fit(x)  # type of the loss", "fit(x)  # type of the loss"),
    ],
)
def test_comments_for_tools_are_left_out_of_a_line_to_blame(failing, text, shown):
    [card, *_] = [one for one in cards(failing) if one.own_line]
    assert replace(card.places[0], at="loop.py:9", text=text).code == f"> 9 | {shown}"


def test_a_case_with_two_problems_is_on_both_cards_and_counted(results, tmp_path):
    law = next(case for case in results.cases if case.findings and case.failed)
    first, second = (replace(law.findings[0], law=name, where=f"loop.py:{line}") for line, name in enumerate("ab", 1))
    cases = [
        replace(law, id=f"case-{number}", findings=findings)
        for number, findings in enumerate([(first,), (first, second), (second,), (second,)])
    ]
    run = replace(results, cases=tuple(cases))
    one, two = cards(run)
    assert [(len(card.cases), [(other.number, len(other.cases)) for other in card.others]) for card in (one, two)] == [
        (3, [(2, 1)]),
        (2, [(1, 1)]),
    ]
    said = f"also: 1 of the 3 cases has another problem: {two.title}"
    assert said in one.lines()
    assert f"also: this case has another problem: {two.title}" in one.of(cases[1]).lines()
    assert "also: " not in "\n".join(one.of(cases[2]).lines())
    assert markdown(digest(run)).count("has another problem") == 2
    both = ElementTree.fromstring(junit(run)).find(".//testcase[@name='case-1']/failure").text
    assert f"also: this case has another problem: {two.title}" in both
    render_html(run, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert 'data-problem="1 2" data-law="a b">' in page
    assert '<a href="#problem-2">1 of the 3 cases has another problem</a>' in page


def test_numbers_alone_blame_no_line_and_name_the_calls_of_their_window(results):
    case = next(case for case in results.cases if case.first_difference and not case.findings and not case.diverged)
    moments = next(case.timeline for case in results.cases if case.timeline)
    first = replace(case.first_difference, where="f.py:9, called from loop.py:41", source=("step()", "fit(x)"))
    case = replace(case, first_difference=first, timeline=moments, guards=(), explained_by=())
    [card] = cards(replace(results, cases=(case,)))
    assert (card.role, card.where) == ("at or before", first.where)
    assert [(place.label, place.at, place.code) for place in card.places] == [
        ("at or before", "f.py:9", "> 9 | step()"),
        ("called from", "loop.py:41", "> 41 | fit(x)"),
    ]
    # The backward may divide the loss, so it comes before the step where a wrong gradient shows.
    case = replace(case, first_difference=replace(first, quantity="gradient", where="my_loop.py:35", source=("f(x)",)))
    [card] = cards(replace(results, cases=(case,)))
    found = [(place.label, place.at, place.code) for place in card.places]
    assert found[0] == ("at or before", "my_loop.py:35", "> 35 | f(x)")
    assert [label for label, *_ in found] == ["at or before", "unscale", "clip", "step"]


def test_the_line_of_a_reason_is_the_place_also_with_spaces_and_commas_in_its_path(results):
    case = next(case for case in results.cases if case.first_difference and not case.findings and not case.diverged)
    reason = Reason(where="f.py:9, called from my runs, old/loop.py:41", source=("step()", "fit(x)"))
    case = replace(case, target="my runs, old/loop.py:train", reason=reason, guards=())
    [card] = cards(replace(results, cases=(case,)))
    assert card.where == reason.where
    assert card.own_line == ("my runs, old/loop.py", 41)
    assert [place.code for place in card.places] == ["> 9 | step()", "> 41 | fit(x)"]


@pytest.mark.parametrize("verdict", ["FAIL (numerics)", "INCONCLUSIVE"])
def test_what_to_change_is_the_fix_and_not_in_the_title(results, tmp_path, verdict):
    """Of a guard, and of what cannot be judged; in every format."""
    broken = next(case for case in results.cases if case.findings and case.failed)
    said, advice = "no rank reads 8 samples of epoch 0", "train on each sample once in an epoch"
    guards = (Guard("all samples read", False, "once in each epoch", said),) if verdict != "INCONCLUSIVE" else ()
    reason = Reason("unobserved", advice=advice)
    case = replace(broken, verdict=verdict, headline=said, reason=reason, guards=guards, findings=())
    run = replace(results, cases=(case,))
    [card] = cards(run)
    assert (card.title, card.advice) == (said, advice)
    title, *parts = card.lines()
    assert title.startswith(f"{verdict}: {capitalized(said)}")
    assert advice not in title
    assert f"fix: {advice}" in parts
    console = Console(file=StringIO(), width=200)
    render_terminal(run, console)
    render_html(run, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    of_sarif = json.loads(sarif(digest(run)))["runs"][0]["results"]
    assert f"\n  fix: {advice}\n" in console.file.getvalue()
    assert re.search(rf"<dt>Fix</dt>\s*<dd>{advice}\s*</dd>", page)
    assert f"**Fix** {advice}\n" in markdown(digest(run))
    assert any(f"\nfix: {advice}\n" in one["message"]["text"] for one in of_sarif)
    assert any(f"fix: {advice}" in line for line in workflow_commands(digest(run)))
    assert f"\nfix: {advice}\n" in ElementTree.fromstring(junit(run)).find(".//failure").text


def test_nothing_of_a_trainer_is_markup(results, hostile):
    case = next(case for case in results.cases if case.verdict == "CRASH")
    wrong = replace(case, headline=hostile + "```\n# heading", findings=(), command=f"conformance run '{hostile}```'")
    run = replace(results, cases=(wrong,))
    text = markdown(digest(run))
    assert "\x1b" not in text and "\n# heading" not in text and "<script" not in text.replace("\\<", "")
    assert ElementTree.fromstring(junit(run)).findall(".//failure")
    jsonschema.validate(json.loads(sarif(digest(run))), SCHEMA)
    assert len(list(workflow_commands(digest(run)))) == len(cards(run)) and "\n" not in "".join(
        workflow_commands(digest(run))
    )
    ElementTree.fromstring(svg(run))


def test_an_annotation_is_at_the_line_of_the_trainer(failing):
    lines = list(workflow_commands(digest(failing)))
    first = digest(failing).cards[0]
    of_expected = list(workflow_commands(digest(failing), lambda card: card.title == first.title))
    assert of_expected == [lines[0].replace("::error ", "::notice ", 1), *lines[1:]]
    assert len(lines) == len(cards(failing))
    [line, *_] = [line for line in lines if line.startswith("::error file=src/loop.py,line=41,title=")]
    assert "%0A" in line and "rerun: conformance run" in line


def test_sarif_is_valid_and_names_the_law_and_the_line(failing):
    found = json.loads(sarif(digest(failing)))
    jsonschema.validate(found, SCHEMA)
    [run] = found["runs"]
    assert len(run["results"]) == len(cards(failing))
    rules = {rule["id"] for rule in run["tool"]["driver"]["rules"]}
    assert {one["ruleId"] for one in run["results"]} == rules
    pages = {rule["id"]: rule.get("helpUri") for rule in run["tool"]["driver"]["rules"]}
    assert pages["amp/unscale-before-clip"] == page_of("amp/unscale-before-clip") and pages["bug"] is None
    [location] = next(one["locations"] for one in run["results"] if "locations" in one)
    at = {"artifactLocation": {"uri": "src/loop.py"}, "region": {"startLine": 41}}
    assert location["physicalLocation"] == at
    # The schema finds a fault.
    del run["tool"]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(found, SCHEMA)


def test_junit_has_a_test_for_each_case(failing):
    root = ElementTree.fromstring(junit(failing))
    tests = root.findall(".//testcase")
    assert [test.get("name") for test in tests] != [] and len(tests) == len(failing.cases)
    assert len(root.findall(".//failure")) == failing.failed == sum(int(one.get("failures")) for one in root)
    assert len(root.findall(".//skipped")) == failing.not_run == sum(int(one.get("skipped")) for one in root)
    case = next(case for case in failing.cases if case.target == "src/loop.py:train")
    [test] = [
        one for one in tests if (one.get("classname"), one.get("name")) == (f"{case.trainer}.{case.path}", case.id)
    ]
    assert {one.get("name"): one.get("value") for one in test.find("properties")}["precision"] == case.precision
    text = test.find("failure").text
    assert "edit: move my_loop.py:43 above line 41\n  > 41 | scaler.step(optimizer)\n" in text
    assert "\ninside: torch/amp/grad_scaler.py:9\n" in text
    assert text.splitlines()[-1] == f"rerun: {case.command}"


def test_a_badge(failing):
    said = f"{failing.passed} of {failing.passed + failing.failed} cases passed"
    badge = {"schemaVersion": 1, "label": "conformance", "message": said, "color": "#b9302c"}
    assert json.loads(endpoint(failing)) == badge
    assert f"conformance: {said}" in svg(failing)
    good = replace(failing, cases=tuple(case for case in failing.cases if not case.failed))
    assert json.loads(endpoint(good))["message"] == f"{good.passed} cases passed"
    cut = replace(good, cut_off="the run was cut off")
    assert json.loads(endpoint(cut))["message"] == "undecided"


def test_a_job_of_github_actions(failing, tmp_path: Path, monkeypatch, capsys):
    (summary := tmp_path / "summary.md").write_text("# Before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    in_github_actions(digest(failing))
    assert summary.read_text() == "# Before\n" + markdown(digest(failing))
    assert capsys.readouterr().out == ""
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    in_github_actions(digest(failing))
    assert capsys.readouterr().out.splitlines() == list(workflow_commands(digest(failing)))
    in_github_actions(digest(failing), [case.id for case in failing.cases])
    assert all(line.startswith("::notice ") for line in capsys.readouterr().out.splitlines())


def test_the_commands_write_them(results_file, tmp_path: Path, capsys):
    names = {"markdown": "a.md", "junit": "a.xml", "sarif": "a.sarif", "badge": "a.json"}
    options = [part for name, file in names.items() for part in (f"--{name}", str(tmp_path / file))]
    assert main(["report", str(results_file), "--output", str(tmp_path / "a.html"), *options]) == 1
    assert all((tmp_path / file).stat().st_size for file in names.values())
    assert json.loads((tmp_path / "a.json").read_text())["schemaVersion"] == 1
    capsys.readouterr()
    assert main(["run", "batched", "--junit", str(tmp_path / "a.md" / "a.xml"), "--output", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("conformance: cannot write ")


#: No file can hold the first, no XML the second.
UNWRITABLE = "\udcff\x00"
#: Their values are chosen from a list.
CHOSEN = {"kind", "verdict", "verdicts", "level", "quantity", "way", "mistake"}


def unwritable(value):
    """`value` with such characters at the end of each text."""
    if isinstance(value, dict):
        return {name: one if name in CHOSEN else unwritable(one) for name, one in value.items()}
    if isinstance(value, list):
        return [unwritable(one) for one in value]
    return value + UNWRITABLE if isinstance(value, str) and value not in (*NON_FINITE, "exited 0") else value


def test_text_that_no_file_can_hold(results_file, tmp_path: Path, capsys, monkeypatch):
    """Every field has it, and each format and page is still written and readable."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "summary.md")
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    texts = [json.dumps(unwritable(json.loads(line))) for line in results_file.read_text().splitlines()]
    Path("conformance-results.jsonl").write_text("\n".join(texts) + "\n")
    names = ("--markdown", "a.md", "--junit", "b.xml", "--sarif", "c.sarif", "--badge", "d.svg")
    assert main(["report", "conformance-results.jsonl", *names]) == 1
    assert main(["diff", str(results_file), "conformance-results.jsonl", "--html", "e.html"]) == 0
    assert main(["merge", "conformance-results.jsonl", "--output", "merged"]) == 1
    in_github_actions(digest(read_results("conformance-results.jsonl")))
    assert "Traceback" not in capsys.readouterr().err
    for name in ("a.md", "summary.md", "e.html", "conformance-report.html", "merged/conformance-report.html"):
        assert "\\udcff" in Path(name).read_text("utf-8"), name
    for name in ("b.xml", "d.svg"):
        ElementTree.parse(name)
    json.dumps(json.loads(Path("c.sarif").read_text()), ensure_ascii=False).encode()
