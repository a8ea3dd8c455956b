"""`conformance diff`: its verdict and sections, and its exit code, which is 1 after a regression only."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from conformance.cli import main, outputs
from conformance.report.differences import compared, markdown
from conformance.results import Results, ResultsWriter
from tools import results_schema as schema


def passed(results):
    return [case for case in results.cases if case.verdict == "PASS (exact)"]


def broken(results, count=1):
    """The same run, in which cases that passed crash."""
    wrong = {id(case) for case in passed(results)[:count]}
    cases = (
        replace(case, verdict="CRASH", headline="rank 0 died") if id(case) in wrong else case for case in results.cases
    )
    return replace(results, cases=tuple(cases))


def test_the_same_run(results):
    comparison = compared(results, results)
    assert comparison.sections == []
    assert comparison.verdict == (
        "No regression: every case that passed before and ran again still passes.",
        "good",
    )
    ran = len(results.cases) - results.not_run
    assert comparison.counts == f"{ran} cases compared: {ran} unchanged."


def test_a_regression_and_a_fixed_case(results):
    other = broken(results)
    first = passed(results)[0]
    comparison = compared(results, other)
    assert comparison.verdict == ("Regression: 1 case that passed now fails.", "bad")
    assert [section.title for section in comparison.sections] == ["Regressions", "New problems"]
    # The problem says why.
    assert comparison.sections[0].lines == ((f"{first.trainer} {first.id}", "PASS (exact) → CRASH"),)
    assert "rank 0 died" in comparison.sections[1].lines[0][1]
    assert ": 1 regressions, " in comparison.counts
    back = compared(other, results)
    assert back.regressions == ()
    assert [name for name, _ in back.sections[0].lines] == [f"{first.trainer} {first.id}"]
    assert [section.title for section in back.sections] == ["Fixed", "Fixed problems"]


def test_what_did_not_run_is_no_regression(results):
    first = passed(results)[0]
    cases = tuple(replace(case, verdict="UNAVAILABLE") if case is first else case for case in results.cases)
    comparison = compared(results, replace(results, cases=cases))
    assert not comparison.regressions
    [section] = comparison.sections
    assert (section.title, section.is_detail) == ("Not compared", True)
    assert [name for name, _ in section.lines] == [f"{first.trainer} {first.id}"]
    assert comparison.counts.endswith(" 1 not compared, because they did not run again.")


def test_cases_that_are_new_and_not_compared(results):
    two = passed(results)[:2]
    less = replace(results, cases=tuple(case for case in results.cases if not any(case is one for one in two)))
    names = [f"{case.trainer} {case.id}" for case in two]
    for found, title in ((compared(less, results), "New cases that pass"), (compared(results, less), "Not compared")):
        [section] = found.sections
        assert (section.title, section.is_detail, [name for name, _ in section.lines]) == (title, True, names)
        assert not found.regressions


def test_a_problem_of_cases_that_did_not_run_again_is_not_fixed(results):
    """One that no case of the second run shows is fixed if one of its cases ran again."""
    other = broken(results)
    first = passed(results)[0]
    without = replace(results, cases=tuple(case for case in results.cases if case.id != first.id))
    assert [one.title for one in compared(other, without).sections if not one.is_detail] == []
    assert [one.title for one in compared(other, results).sections] == ["Fixed", "Fixed problems"]


def test_nothing_compared(results):
    comparison = compared(results, empty(results))
    assert comparison.verdict == ("Nothing compared: no case ran in both runs.", "doubt")


@pytest.mark.parametrize("count", [0, 2])
def test_json_fits_its_schema(results, count):
    other = replace(broken(results, count), cases=broken(results, count).cases[:-1])
    for old, new in ((results, other), (other, results), (results, empty(results))):
        document = json.loads(outputs.in_json(outputs.diff(compared(old, new))))
        Draft202012Validator(json.loads((schema.OUTPUTS / "diff.json").read_text())).validate(document)
    assert len(json.loads(outputs.in_json(outputs.diff(compared(results, other))))["regressions"]) == count


def test_markdown_shows_no_more_than_it_should(results):
    comparison = compared(results, broken(results, 4))
    lines = list(markdown(comparison, comparison.sections, most=3))
    assert lines[0] == "**Regression: 4 cases that passed now fail.**"
    assert "\n### Regressions (4)\n" in lines and "- and 1 more" in lines
    assert sum(line.startswith("- `") and "CRASH" in line for line in lines) >= 3


def test_markdown_of_a_hostile_name(results, hostile):
    wrong = passed(results)[0]
    cases = tuple(replace(case, verdict="CRASH", headline=hostile) if case is wrong else case for case in results.cases)
    comparison = compared(results, replace(results, cases=cases))
    text = "\n".join(markdown(comparison, comparison.sections, most=3))
    assert "<img" not in text.replace("\\<", "") and "\x1b" not in text


def test_the_command(results, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    old, new = (write(tmp_path / name, run) for name, run in (("old", results), ("new", broken(results))))
    assert main(["diff", old, new, "--html", str(tmp_path / "diff.html")]) == 1
    assert capsys.readouterr().out.splitlines()[0] == "Regression: 1 case that passed now fails."
    page = (tmp_path / "diff.html").read_text()
    assert "Regression: 1 case that passed now fails." in page and "rank 0 died" in page
    assert main(["diff", new, old, "--format", "markdown"]) == 0
    assert capsys.readouterr().out.startswith("**No regression")
    assert main(["diff", old, new, "--format", "json"]) == 1
    assert json.loads(capsys.readouterr().out)["verdict"] == "REGRESSION"
    assert main(["diff", old, str(tmp_path / "none")]) == 2
    assert "cannot read" in capsys.readouterr().err


def test_how_much_is_printed(results, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Cases that were not compared, and new ones that pass, with --verbose only."""
    old, new = (write(tmp_path / name, run) for name, run in (("old", empty(results)), ("new", broken(results, 30))))
    assert main(["diff", old, new]) == 0
    text = capsys.readouterr().out
    assert "more: --verbose shows all" in text
    assert "New cases that pass" not in text
    main(["diff", old, new, "--verbose"])
    assert len(capsys.readouterr().out.splitlines()) > len(passed(results))
    main(["diff", old, new, "--quiet"])
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_a_file_that_fits_no_report_is_damaged(results, tmp_path: Path, monkeypatch, capsys):
    """Even if its lines are well-formed, the report does not blame the harness."""
    old, new = (write(tmp_path / name, results) for name in ("old", "new"))

    def unfitting(*arguments):
        raise KeyError("cpu")

    for renderer in ("differences.compared", "html.render_html"):
        monkeypatch.setattr(f"conformance.report.{renderer}", unfitting)
    output = tmp_path / "conformance-results.jsonl"
    output.write_text("earlier")
    for command in (["diff", old, new], ["merge", old, "--output", str(tmp_path)], ["report", old]):
        assert main(command) == 2
        [line] = capsys.readouterr().err.splitlines()
        assert "cannot be rendered" in line and "damaged (KeyError: 'cpu')" in line and old in line
    assert output.read_text() == "earlier"
    assert not list(tmp_path.glob("conformance-unfinished-*"))


def empty(results: Results) -> Results:
    return replace(results, cases=())


def write(path: Path, results: Results) -> str:
    with ResultsWriter(path, replace(results.header, planned=len(results.cases))) as writer:
        for case in results.cases:
            writer.case(case)
    return str(path)
