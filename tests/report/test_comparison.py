"""What `conformance diff` says of two runs, and that only a case that held and does not any more fails it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from conformance.cli import main
from conformance.report.comparison import compared, markdown
from conformance.results import Results, ResultsWriter


def passed(results):
    return [case for case in results.cases if case.verdict == "PASS (exact)"]


def broken(results, count=1):
    """The same run, in which cases that held crash."""
    wrong = {id(case) for case in passed(results)[:count]}
    cases = (
        replace(case, verdict="CRASH", headline="rank 0 died") if id(case) in wrong else case for case in results.cases
    )
    return replace(results, cases=tuple(cases))


def test_the_same_run(results):
    comparison = compared(results, results)
    assert comparison.sections == ()
    assert comparison.verdict == ("No regression: each case that held and ran again still holds.", "good")


def test_a_case_that_breaks_and_one_that_is_repaired(results):
    other = broken(results)
    first = passed(results)[0]
    comparison = compared(results, other)
    assert comparison.verdict == ("Regression: 1 case that held does not any more.", "bad")
    assert [section.title for section in comparison.sections] == ["Held, and do not any more", "Causes that are new"]
    assert comparison.sections[0].lines == ((f"{first.trainer} {first.id}", "PASS (exact) → CRASH: rank 0 died"),)
    back = compared(other, results)
    assert back.broken == 0
    assert [name for name, _ in back.sections[0].lines] == [f"{first.trainer} {first.id}"]
    assert [section.title for section in back.sections] == ["Hold now, and did not", "Causes that are gone"]


def test_what_did_not_run_is_no_regression(results):
    first = passed(results)[0]
    cases = tuple(replace(case, verdict="UNAVAILABLE") if case is first else case for case in results.cases)
    comparison = compared(results, replace(results, cases=cases))
    assert not comparison.broken
    [(title, names)] = [(one.title, [name for name, _ in one.lines]) for one in comparison.sections]
    assert (title, names) == ("Held, and did not run this time", [f"{first.trainer} {first.id}"])


def test_cases_that_are_new_and_gone(results):
    less = replace(results, cases=results.cases[2:])
    names = [f"{case.trainer} {case.id}" for case in results.cases[:2]]
    for found, title in ((compared(less, results), "New cases"), (compared(results, less), "Cases that are gone")):
        assert [name for one in found.sections if one.title == title for name, _ in one.lines] == names
        assert not found.broken


def test_markdown_shows_no_more_than_it_should(results):
    lines = list(markdown(compared(results, broken(results, 4)), most=3))
    assert lines[0] == "**Regression: 4 cases that held do not any more.**"
    assert "\n### Held, and do not any more (4)\n" in lines and "- and 1 more" in lines
    assert sum(line.startswith("- `") and "CRASH" in line for line in lines) >= 3


def test_markdown_of_a_hostile_name(results, hostile):
    wrong = passed(results)[0]
    cases = tuple(replace(case, verdict="CRASH", headline=hostile) if case is wrong else case for case in results.cases)
    text = "\n".join(markdown(compared(results, replace(results, cases=cases)), most=3))
    assert "<img" not in text.replace("\\<", "") and "\x1b" not in text


def test_the_command(results, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    old, new = (write(tmp_path / name, run) for name, run in (("old", results), ("new", broken(results))))
    assert main(["diff", old, new, "--html", str(tmp_path / "diff.html")]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "Regression: 1 case that held does not any more."
    page = (tmp_path / "diff.html").read_text()
    assert "Regression: 1 case that held does not any more." in page and "rank 0 died" in page
    assert main(["diff", new, old, "--format", "markdown"]) == 0
    assert capsys.readouterr().out.startswith("**No regression")
    assert main(["diff", old, str(tmp_path / "none")]) == 2
    assert "cannot read" in capsys.readouterr().err


def test_how_much_is_printed(results, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    old, new = (write(tmp_path / name, run) for name, run in (("old", results), ("new", empty(results))))
    assert main(["diff", old, new]) == 0
    assert "more: --verbose shows all" in capsys.readouterr().out
    main(["diff", old, new, "--verbose"])
    assert len(capsys.readouterr().out.splitlines()) > len(results.cases)
    main(["diff", old, new, "--quiet"])
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_a_file_that_fits_no_report_is_damaged(results, tmp_path: Path, monkeypatch, capsys):
    """However well-formed its lines are, it is no bug of ours."""
    old, new = (write(tmp_path / name, results) for name in ("old", "new"))

    def unfitting(*arguments):
        raise KeyError("cpu")

    for renderer in ("comparison.compared", "html.render_html"):
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
