"""`conformance report` on files that somebody damaged or made up: one clear line or a report, never a traceback, never
a word of conformance that the file does not bear out.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from conformance.cli import main

from ..results import synthetic
from ..results.regression import Case

DEEP = 100_000
#: JSON texts that take the place of a value, wherever it is in the file.
VALUES = (
    "-1", "1e999", "-1e308", "1" + "0" * 400, "1" + "0" * 5000, str(2**53 - 1), "NaN", "-Infinity", "null", "true",
    '"nan"', '"-inf"', '""', '"[bold]\\u001b]0;x\\u0007\\u001b[2J[/x]\\nCONFORMS: All 9 judged cases passed.\\ud800"',
    "[]", "{}", "[" * DEEP + "]" * DEEP, '{"a":' * DEEP + "1" + "}" * DEEP,
)  # fmt: skip
MARK = "@here@"


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path to every value; in a list, to the first and last entry."""
    if path:
        yield path
    if isinstance(value, dict):
        for name in value:
            yield from places(value[name], (*path, name))
    elif isinstance(value, list):
        for position in {0, len(value) - 1} if value else ():
            yield from places(value[position], (*path, position))


def replaced(value: Any, path: tuple[Any, ...]) -> Any:
    """A copy with `MARK` at the path."""
    changed = parent = copy.deepcopy(value)
    for step in path[:-1]:
        parent = parent[step]
    parent[path[-1]] = MARK
    return changed


def shape(path: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple("[]" if isinstance(step, int) else step for step in path)


@pytest.fixture
def lines(tmp_path: Path) -> list[Any]:
    """A small run with one case of each verdict, as values."""
    one_of_each = {case["verdict"]: case for case in synthetic.all_cases()}
    synthetic.write(tmp_path / "whole.jsonl", list(one_of_each.values()))
    return [json.loads(line) for line in (tmp_path / "whole.jsonl").read_text().splitlines()]


@pytest.fixture
def reported(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Callable[[str], tuple[int, str, str]]:
    """The exit code of `conformance report` on a file with this content, and what it printed."""

    def report(content: str) -> tuple[int, str, str]:
        path = tmp_path / "results.jsonl"
        path.write_text(content)
        capfd.readouterr()
        code = main(["report", str(path)])
        printed = capfd.readouterr()
        return code, printed.out, printed.err

    return report


@pytest.mark.in_turn
@pytest.mark.parametrize("number", range(7))
def test_any_value_anywhere(lines: list[Any], reported: Callable[[str], tuple[int, str, str]], number: int) -> None:
    """Each field of each kind of record gets one of the values in each row; all of them meet all kinds of field."""
    seen: set[tuple[Any, ...]] = set()
    count = 0
    for path in (path for at, line in enumerate(lines) for path in places(line, (at,))):
        name = (lines[path[0]]["kind"], *shape(path[1:]))
        if len(path) == 1 or name in seen:
            continue
        seen.add(name)
        changed = replaced(lines, path)
        texts = [json.dumps(line) for line in changed]
        value = VALUES[(count + 5 * number) % len(VALUES)]
        content = "\n".join(texts).replace(f'"{MARK}"', value) + "\n"
        code, out, err = reported(content)
        where = f"{name} = {value[:40]}"
        assert code in (1, 2), where
        assert "\x1b" not in out + err, where
        assert "Traceback" not in out + err, where
        assert not any(line.startswith("CONFORMS") for line in out.splitlines()), where
        assert (len(err.splitlines()), out) == (1, "") if code == 2 else err == "", where
        count += 1
    assert count > 150


def passed(**changes: Any) -> Case:
    return synthetic.passing("ddp", "ddp", 2, 2, "fp32", "line") | changes


BROKEN_MUST = {
    "law": "a/b", "level": "MUST", "says": "", "expected": "", "observed": "", "why": "",
    "fix": "", "count": 1, "ranks": [0],
}  # fmt: skip


WRONG = {"step": 0, "quantity": "weights", "parameter": "w", "expected": 1, "observed": 2}


@pytest.mark.parametrize(
    ("cases", "said"),
    [
        ([passed(), passed()], "line 3 repeats the case ddp-w2-acc2-fp32-line of ddp"),
        ([passed(unjudged="Traceback ...")], "line 2 says PASS (exact), but it was not judged"),
        ([passed(findings=[BROKEN_MUST])], "line 2 says PASS (exact), but it broke a/b"),
        (
            [passed(guards=[{"name": "shards differ", "holds": False, "expected": "", "observed": ""}])],
            "line 2 says PASS (exact), but the guard 'shards differ' failed",
        ),
        ([passed(first_difference=WRONG)], "line 2 says PASS (exact), but its numbers are wrong"),
    ],
)
def test_a_file_that_contradicts_itself(
    tmp_path: Path, reported: Callable[[str], tuple[int, str, str]], cases: list[Case], said: str
) -> None:
    synthetic.write(tmp_path / "w.jsonl", cases)
    code, out, err = reported((tmp_path / "w.jsonl").read_text())
    assert (code, out) == (2, "")
    assert said in err


@pytest.mark.parametrize(("planned", "complete"), [(120, True), (0, True), (1, False), (0, False)])
def test_a_footer_that_does_not_fit_the_plan(
    tmp_path: Path, reported: Callable[[str], tuple[int, str, str]], planned: int, complete: bool
) -> None:
    synthetic.write(tmp_path / "w.jsonl", [passed()], planned)
    text = (tmp_path / "w.jsonl").read_text()
    wrong = text.replace('"complete":' + str(planned == 1).lower(), '"complete":' + str(complete).lower())
    code, out, err = reported(wrong)
    assert (code, out) == (2, "")
    assert f"{planned} cases were planned, but 1 are in the file" in err


def test_the_report_of_other_results_is_removed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The old report says "Conforming", and its results are damaged."""
    results, report = tmp_path / "conformance-results.jsonl", tmp_path / "conformance-report.html"
    synthetic.write(results, [passed()])
    assert main(["report", str(results)]) == 0
    assert "ddp conforms" in report.read_text()
    results.write_text("{\n" + results.read_text())
    assert main(["report", str(results)]) == 2
    assert not report.exists()
    assert f"removed {report}, the report of other results" in capfd.readouterr().err
