"""The terminal: what failed, how to reproduce it, what did not run, the totals; foreign text is escaped."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable

import pytest
from rich.console import Console

from conformance.report.card import cards
from conformance.report.terminal import Detail, render_terminal
from conformance.results import Results

from ..results.regression import Case


def printed(results: Results, width: int = 100, detail: Detail = "normal", **options: object) -> str:
    console = Console(file=io.StringIO(), width=width, **options)
    render_terminal(results, console, "out/conformance-report.html", detail)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_newcomer_finds_what_matters(results: Results) -> None:
    text = printed(results)
    assert "FAIL (numerics)  The trainer adds up the micro-batches without dividing by their number\n" in text
    assert "  expected: weight[0] after step 0 is 0.9453125\n  observed: 1.890625\n" in text
    assert "  rerun: conformance run my_loop.py --case ddp-w2-acc2-fp32-line\n" in text
    assert "○ 10 UNAVAILABLE; --verbose lists why\n" in text
    assert text.startswith("DOES NOT CONFORM: ")
    assert text.endswith("Report: out/conformance-report.html\n")


def test_what_did_not_run_is_listed_where_it_is_asked_for_and_where_nothing_ran(results: Results) -> None:
    reason = "UNAVAILABLE  5 cases: horovod is not installed: pip install horovod==0.28.1"
    assert reason not in printed(results)
    assert reason in printed(results, detail="verbose")
    idle = tuple(case for case in results.cases if case.verdict == "UNAVAILABLE")
    assert reason in printed(dataclasses.replace(results, cases=idle))


def test_every_row_and_column_of_the_matrix(results: Results) -> None:
    lines = printed(results).splitlines()
    assert lines[2].split() == ["fp64", "fp32", "bf16", "fp16"]
    assert any(line.split()[:3] == ["ddp-w2", "·", "✓"] for line in lines)
    assert any("✗ 4 of 4" in line and "✗ 3 of 3" in line for line in lines)


@pytest.mark.parametrize("width", [30, 60, 120])
def test_no_cell_is_broken(read: Callable[..., Results], one_case: Case, width: int) -> None:
    """Columns that do not fit are below the others, with the names again."""
    precisions = ["fp64", "fp32", "bf16", "fp16", "fp16-compression", "apex-O1", "apex-O2", "apex-O3"]
    cases = [one_case | {"id": f"c{k}-{name}", "precision": name} for name in precisions for k in range(12)]
    lines = printed(read(cases), width=width).splitlines()
    rows = [line for line in lines if line.startswith("ddp-w2-acc2")]
    assert sum(row.count("✓ 12") for row in rows) == len(precisions)
    assert len(rows) == {30: 4, 60: 2, 120: 1}[width]
    assert all(len(line) <= width for line in lines if "✓" in line)


def test_many_paths_become_a_row_for_each_trainer(read: Callable[..., Results], one_case: Case) -> None:
    """As in a run of all reference trainers: 30 lines at most, in 80 columns."""
    cases = [
        one_case | {"id": f"{path}{trainer}", "path": f"{path}-of-{trainer}", "trainer": trainer}
        for trainer in (f"trainer_number_{k}" for k in range(15))
        for path in "abc"
    ]
    results = read(cases)
    assert len(printed(results, width=80).splitlines()) <= 30
    assert any(line.split() == ["trainer_number_3", "✓", "3"] for line in printed(results).splitlines())
    assert "  a-of-trainer_number_3" in printed(results, detail="verbose")


def test_failures_come_before_what_proves_nothing_and_the_cause_of_most_cases_first(
    read: Callable[..., Results], one_case: Case
) -> None:
    def cases(verdict: str, cause: str, number: int) -> list[Case]:
        return [
            one_case | {"id": f"{cause} {at}", "verdict": verdict, "headline": cause, "reason": {"code": cause}}
            for at in range(number)
        ]

    text = printed(read([*cases("INCONCLUSIVE", "open", 3), *cases("CRASH", "rare", 1), *cases("CRASH", "often", 2)]))
    places = [text.index(title) for title in ("Often\n  2 of 6 cases", "Rare\n  1 of 6 cases", "Open\n  3 of 6 cases")]
    assert places == sorted(places)


def test_quiet_prints_the_verdict_and_a_line_for_each_problem(results: Results) -> None:
    verdict, *problems = printed(results, width=300, detail="quiet").splitlines()
    assert len(problems) == len(cards(results))
    assert all(" case" in problem and " · " in problem for problem in problems)
    assert verdict.startswith("DOES NOT CONFORM: ")


def test_a_command_is_never_broken_into_lines(read: Callable[..., Results], one_case: Case) -> None:
    command = "conformance run " + "folder/" * 30 + "my_loop.py --case x"
    assert command in printed(read([one_case | {"verdict": "CRASH", "command": command}]), width=60)


def test_many_problems_are_cut_short_and_counted(read: Callable[..., Results], one_case: Case) -> None:
    many = [one_case | {"verdict": "CRASH", "headline": f"cause {chr(97 + k)}", "id": f"c{k}"} for k in range(20)]
    assert "8 more problems in 8 cases: --verbose shows all" in printed(read(many))
    assert "more problems" not in printed(read(many), detail="verbose")


def test_markup_and_control_characters_of_a_trainer_are_shown_and_not_obeyed(
    read: Callable[..., Results], one_case: Case, hostile: str
) -> None:
    wrong = one_case | {"verdict": "CRASH", "headline": f"[bold]{hostile}[/bold]", "explained_by": ["\x1b]0;x\x07\r"]}
    text = printed(read([wrong]), width=200, force_terminal=True, color_system=None)
    assert "[bold]</script>" in text
    assert "\\u202egnp.exe[/bold]" in text
    assert "\x1b" not in text


def test_a_run_that_was_cut_off_and_one_without_a_case(read: Callable[..., Results], one_case: Case) -> None:
    text = printed(read([one_case], planned=120))
    assert "INCOMPLETE: the run was cut off: 1 of 120 cases" in text
    assert "UNDECIDED: " in text
    assert "UNDECIDED: No case ran." in printed(read([]))
