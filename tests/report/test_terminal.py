"""The terminal summary: what failed and how to see it again, what did not run, the totals; foreign text is
text.
"""

from __future__ import annotations

import io
from collections.abc import Callable

from rich.console import Console

from conformance.report.terminal import render_terminal
from conformance.results import Results

from ..results.regression import Case


def printed(results: Results, width: int = 100, **options: object) -> str:
    console = Console(file=io.StringIO(), width=width, **options)
    render_terminal(results, console, "out/conformance-report.html")
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_newcomer_finds_what_matters(results: Results) -> None:
    text = printed(results)
    assert "FAIL (numerics)  The trainer adds up the micro-batches without dividing by their number." in text
    assert "first difference: weights after step 0, weight[0]: expected 0.9453125, observed 1.890625" in text
    assert "$ conformance run my_loop.py --case ddp-w2-acc2-fp32-line\n" in text
    assert "UNAVAILABLE  5 cases: horovod is not installed: pip install horovod==0.28.1" in text
    assert "Not conforming" in text
    assert text.endswith("Report: out/conformance-report.html\n")


def test_every_row_and_column_of_the_matrix(results: Results) -> None:
    lines = printed(results).splitlines()
    assert lines[0].split() == ["fp64", "fp32", "bf16", "fp16"]
    assert any(line.split()[:3] == ["ddp-w2", "·", "✓"] for line in lines)
    assert any("≠ FAIL numerics 4" in line and "✗ CRASH 1/3" in line for line in lines)


def test_a_command_is_never_broken_into_lines(read: Callable[..., Results], one_case: Case) -> None:
    command = "conformance run " + "folder/" * 30 + "my_loop.py --case x"
    assert command in printed(read([one_case | {"verdict": "CRASH", "command": command}]), width=60)


def test_many_causes_are_cut_short_and_counted(read: Callable[..., Results], one_case: Case) -> None:
    many = [one_case | {"verdict": "CRASH", "headline": f"cause {chr(97 + k)}", "id": f"c{k}"} for k in range(20)]
    assert "and 8 cases with other causes" in printed(read(many))


def test_markup_and_control_characters_of_a_trainer_are_shown_and_not_obeyed(
    read: Callable[..., Results], one_case: Case, hostile: str
) -> None:
    wrong = one_case | {
        "verdict": "CRASH",
        "headline": f"[bold]{hostile}[/bold]",
        "explained_by": ["\x1b]0;x\x07\r"],
    }
    text = printed(read([wrong]), width=200, force_terminal=True, color_system=None)
    assert "[bold]</script>" in text
    assert "\\u202egnp.exe[/bold]" in text
    assert "\x1b" not in text


def test_a_run_that_was_cut_off(read: Callable[..., Results], one_case: Case) -> None:
    text = printed(read([one_case], planned=120))
    assert "INCOMPLETE: the run was cut off: 1 of 120 cases" in text
    assert "Not shown to conform" in text


def test_a_run_without_a_case(read: Callable[..., Results]) -> None:
    assert "Nothing was judged" in printed(read([]))
