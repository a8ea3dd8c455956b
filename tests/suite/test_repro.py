"""`conformance repro`: a standalone script shows the failure; with the correct trainer it exits with 0."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from conformance.repro import proof
from conformance.results import read_results
from fixtures.written import file_of

CASE = "single-acc2-fp16-clip-value"
#: The line of the mutant, in the correct order.
WRONG = "        task.clip_(model.parameters())\n        scaler.unscale_(optimizer)\n"
RIGHT = "        scaler.unscale_(optimizer)\n        task.clip_(model.parameters())\n"


def test_a_script_for_a_case_of_a_run(conformance, folder):
    mutant = str(file_of("clip_before_unscale"))
    assert conformance("run", mutant, "--case", CASE, "--case", "single-acc4-fp16-clip-value").code == 1
    ended = conformance("repro", "single-acc4-fp16-clip-value", "--output", "mine.py")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith(f"mine.py reproduces {CASE}, the smallest case with the problem of")
    assert "after step 0, weight[0] on rank 0: observed 0.546875, expected 2.0" in ended.out
    script = Path("mine.py").read_text()
    assert script.startswith('"""The trainer clips before it unscales (clip_before_unscale.py:')
    assert script.count(WRONG) == 1
    Path("mine.py").write_text(script.replace(WRONG, RIGHT))
    assert proof.run(Path("mine.py"), folder) == proof.Run(0, "after step 0, all values are as expected\n")
    assert "conformance repro single-acc2-fp16-clip-value" in Path("conformance-report.html").read_text()
    [shown] = [one for one in read_results(Path("conformance-results.jsonl")).cases if one.id == CASE]
    assert shown.repro_command == f"conformance repro {CASE} {mutant}"


def test_a_message_that_no_file_can_hold(conformance, write):
    target = write(r"raise RuntimeError('no file \udcff\x00')")
    ended = conformance("repro", "single-batched-fp32-momentum", target, "--output", "mine.py")
    assert (ended.code, ended.err) == (0, "")
    assert "no file \\udcff" in ended.out
    assert ast.get_docstring(ast.parse(Path("mine.py").read_bytes())).startswith(
        r"Rank 0 raised RuntimeError: no file \udcff\x00"
    )


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("single-batched-fp32-momentum", "batched"), "does not fail when it runs again (PASS (exact))"),
        (
            ("single-batched-fp32", "batched"),
            "no case has the id single-batched-fp32; conformance list cases lists them",
        ),
        (("no-such-case", "batched"), "no case matches no-such-case"),
        (("no-such-case",), "conformance-results.jsonl"),
    ],
)
def test_no_script(conformance, folder, arguments, why):
    ended = conformance("repro", *arguments)
    assert ended.code == 2
    assert why in ended.line
    assert list(folder.glob("*.py")) == []
