"""Results of several runs merged into one file, and files that cannot be merged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from conformance.cli import main
from conformance.results import ResultsError, read_results
from conformance.results.merging import merged

from . import synthetic


@pytest.fixture
def halves(tmp_path: Path) -> list[Path]:
    """One run in two files."""
    whole = tmp_path / "whole.jsonl"
    synthetic.write(whole)
    header, *lines = map(json.loads, whole.read_text().splitlines())
    cases = [line for line in lines if line["kind"] == "case"]
    return [
        written(tmp_path / f"{name}.jsonl", header | {"machine": {"torch": "2.13.0", "job": name}}, half)
        for name, half in (("first", cases[::2]), ("second", cases[1::2]))
    ]


def written(path, header, cases):
    verdicts = {}
    for case in cases:
        verdicts[case["verdict"]] = verdicts.get(case["verdict"], 0) + 1
    footer = {"kind": "footer", "finished": "2026-11-25T12:00:00+00:00", "cases": len(cases), "verdicts": verdicts}
    lines = [header | {"planned": len(cases)}, *cases, footer | {"complete": True}]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def together(paths):
    return merged([(path, read_results(path)) for path in paths], "conformance merge")


def test_all_cases_are_there(halves):
    found = together(halves)
    assert {case.id for case in found.cases} == {case.id for path in halves for case in read_results(path).cases}
    assert found.header.planned == len(found.cases)
    assert found.header.machine == {"torch": "2.13.0", "job": "first or second"}


def test_the_command_writes_results_and_a_report(halves, tmp_path, capsys):
    assert main(["merge", *map(str, halves), "--output", str(tmp_path)]) == 1
    assert read_results(tmp_path / "conformance-results.jsonl").cases == together(halves).cases
    assert "DOES NOT CONFORM: " in capsys.readouterr().out
    assert "<h1" in (tmp_path / "conformance-report.html").read_text()


def test_the_output_may_be_one_of_the_inputs(halves, tmp_path):
    """It is replaced by the merged results, or left unchanged if they cannot be merged."""
    first = halves[0].rename(tmp_path / "conformance-results.jsonl")
    before = first.read_text()
    assert main(["merge", str(first), str(first), "--output", str(tmp_path)]) == 2
    assert first.read_text() == before
    assert main(["merge", str(first), str(halves[1]), "--output", str(tmp_path)]) == 1
    assert len(read_results(first).cases) == len(read_results(halves[1]).cases) + before.count('"kind": "case"')
    assert not list(tmp_path.glob("conformance-unfinished-*"))


def test_a_torn_file(halves):
    text = halves[1].read_text()
    halves[1].write_text(text[: text.rindex('{"kind": "footer"')])
    with pytest.raises(ResultsError, match=r"second\.jsonl: the run was cut off"):
        together(halves)


def test_files_of_other_versions(halves):
    halves[1].write_text(halves[1].read_text().replace('"version": "', '"version": "9', 1))
    with pytest.raises(ResultsError, match=r"second\.jsonl and .*first\.jsonl differ in the version"):
        together(halves)


def test_a_case_twice(halves, capsys):
    with pytest.raises(ResultsError, match=r"both have the case "):
        together([halves[0], halves[0]])
    assert main(["merge", str(halves[0]), str(halves[0]), "--output", str(halves[0].parent)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
