"""The scripts that `conformance watch` is judged by are complete; `python -m fixtures.watched` runs them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fixtures.watched import HERE, Run, complaint, read, scripts


def test_every_script_has_a_header_and_stands_in_the_table() -> None:
    listed = re.findall(r"^\| \[(\w+)\]\((\w+)/(\w+)\.py\)", (HERE / "README.md").read_text(), re.MULTILINE)
    assert listed == [(script.name, script.path.parent.name, script.name) for script in scripts()]


def test_no_name_is_given_twice() -> None:
    names = [script.name for script in scripts()]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("folder", "text"),
    [
        ("right", "# Start: python\n"),
        ("right", '"""What it is."""\n'),
        ("right", '"""What it is."""\n# Start: python\n# Cause: a bug\n'),
        ("wrong", '"""What it is."""\n# Start: python\n'),
    ],
)
def test_a_header_that_is_not_complete_is_refused(tmp_path: Path, folder: str, text: str) -> None:
    path = tmp_path / folder / "script.py"
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(ValueError, match="begin with a docstring"):
        read(path)


RIGHT, WRONG = scripts()[0], scripts()[-1]
PRINTED = Run(0, "loss 0.5", "", None)


@pytest.mark.parametrize("verdict", ["CONFORMS", "UNDECIDED"])
def test_a_right_script_may_be_undecided_and_a_wrong_one_not(verdict: str) -> None:
    assert complaint(RIGHT, verdict, PRINTED, PRINTED) is None
    assert complaint(WRONG, verdict, PRINTED, PRINTED) == "missed"


def test_a_wrong_script_is_to_be_flagged_and_a_right_one_not() -> None:
    assert complaint(WRONG, "DOES NOT CONFORM", PRINTED, PRINTED) is None
    assert "a false alarm" in str(complaint(RIGHT, "DOES NOT CONFORM", PRINTED, PRINTED))


def test_what_a_script_prints_must_not_change() -> None:
    assert "loss 0.25" in str(complaint(RIGHT, "CONFORMS", PRINTED, Run(0, "loss 0.25", "", None)))
    assert "fails by itself" in str(complaint(RIGHT, "CONFORMS", Run(1, "", "no module", None), PRINTED))
