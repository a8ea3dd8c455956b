"""`conformance exercise`: right answers pass, each wrong one is told what it does, and nothing in the file stops it."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest

from conformance.cli import main

FILES = Path(__file__).parents[2] / "fixtures" / "exercise"
WRONG = sorted(file for file in FILES.glob("*.py") if file.name != "right.py")


def expected(file):
    """What its EXPECTED says, without running it: by function, a part of its explanation."""
    assignments = [node for node in ast.parse(file.read_text()).body if isinstance(node, ast.Assign)]
    return ast.literal_eval(next(node.value for node in assignments if node.targets[0].id == "EXPECTED"))


@pytest.fixture
def exercise(capsys):
    """Runs the command; gives its exit code, its output in one line a function, and its errors."""

    def run(file, *options):
        code = main(["exercise", str(file), *options])
        out, err = capsys.readouterr()
        blocks = re.split(r"^(?=Q\d+ )", out, flags=re.MULTILINE)
        return code, {block.split()[1]: " ".join(block.split()) for block in blocks if block.startswith("Q")}, out, err

    return run


def test_right_answers(exercise):
    code, told, out, err = exercise(FILES / "right.py")
    assert (code, err) == (0, "")
    assert [line.split()[2] for line in told.values()] == ["right"] * 6
    assert "6 of 6 right, 0 wrong" in out


@pytest.mark.parametrize("file", WRONG, ids=lambda file: file.stem)
def test_wrong_answers_are_told_what_they_do(exercise, file):
    code, told, out, _ = exercise(file, "--time-limit", "2")
    assert code == 1
    for function, part in expected(file).items():
        assert told[function].split()[2] == "wrong"
        assert part in told[function]
    others = set(told) - set(expected(file))
    assert {told[function].split()[2] for function in others} <= {"right", "missing"}
    assert out.count("looks as if it") == sum("looks as if it" in told[function] for function in told) + (
        file.stem == "two_mistakes"
    )


def write(tmp_path, text):
    (tmp_path / "mine.py").write_text(text)
    return tmp_path / "mine.py"


RIGHT_POINT = """
def grad_point(m, data, N):
    x, ytrue = data
    return -2 * x * (ytrue - m * x) / N
"""


@pytest.mark.parametrize(
    ("after", "said"),
    [
        ("assert grad_point(2, (1, 1), 4) == 7, 'seven'", "line 5: AssertionError: seven"),
        ("import sys\nsys.exit(4)", "line 6: SystemExit: 4"),
        ("while True: pass", "line 5: still running after 1 s"),
    ],
)
def test_what_a_file_defined_before_it_ended_is_checked(exercise, tmp_path, after, said):
    code, told, out, _ = exercise(write(tmp_path, RIGHT_POINT + after), "--time-limit", "1")
    assert code == 1
    assert said in out
    assert told["grad_point"].split()[2] == "right"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("1 / 0", "raised ZeroDivisionError: division by zero, in line 6"),
        ("import os; os._exit(3)", "ended the process (exited 3)"),
        ("return float('nan')", "returned nan, which is not a finite number"),
        ("return [1.0]", "returned [1.0], which is not a finite number"),
        (
            "\n    while True:\n        try:\n            while True: pass\n        except BaseException: pass",
            "still running",
        ),
    ],
)
def test_one_answer_that_breaks_loses_no_other(exercise, tmp_path, body, said):
    text = RIGHT_POINT + f"def grad_multi(m, data):\n    {body}\n"
    code, told, _, _ = exercise(write(tmp_path, text), "--time-limit", "1")
    assert code == 1
    assert said in told["grad_multi"]
    assert told["grad_point"].split()[2] == "right"
    assert told["train_loop"].split()[2] == "missing"


def test_numbers_that_no_mistake_gives(exercise, tmp_path):
    """Whichever mistakes are tried, one without a number for these inputs among them: the root of a negative loss."""
    code, told, _, _ = exercise(write(tmp_path, "def loss_mse(m, data):\n    return 123.5\n"))
    assert code == 1
    assert "No common mistake gives these numbers" in told["loss_mse"]


def test_what_an_answer_prints_and_reads_disturbs_nothing(exercise, tmp_path):
    text = "print('hello')\n" + RIGHT_POINT.replace("    x,", "    print(m)\n    x,")
    code, told, out, err = exercise(write(tmp_path, text))
    assert (code, err) == (0, "")
    assert "hello" not in out
    assert told["grad_point"].split()[2] == "right"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def f(:\n", "mine.py:1: SyntaxError: invalid syntax"),
        ("def f(): pass\n", "mine.py defines none of the exercise's functions: loss_mse, grad_point"),
        ("import os\nos._exit(9)", "mine.py: reading it ended the process (exited 9)"),
        ("raise ValueError('no')\n", "none of the exercise's functions (reading it ended early, at line 1: ValueError"),
    ],
)
def test_bad_input_is_one_line(exercise, tmp_path, text, said):
    code, _, out, err = exercise(write(tmp_path, text))
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(("name", "said"), [("none.py", "No such file"), (".", "Is a directory")])
def test_no_file(exercise, tmp_path, name, said):
    code, _, out, err = exercise(tmp_path / name)
    assert (code, out) == (2, "")
    assert said in err


def test_hypothesis_is_missing(exercise, monkeypatch):
    monkeypatch.setattr("conformance.cli.exercise.find_spec", lambda name: None)
    code, _, out, err = exercise(FILES / "right.py")
    assert (code, out) == (2, "")
    assert 'pip install "trainer-conformance[exercise]"' in err
    assert "hypothesis" in sys.modules
