"""The scripts that `conformance watch` is judged by are complete; `python -m fixtures.watched` runs them."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from fixtures import watched
from fixtures.watched import HERE, Run, Script, complaint, read, run, scripts
from fixtures.watched_scripts import ranks


def test_every_script_has_a_header_and_stands_in_the_table() -> None:
    listed = re.findall(r"^\| \[(\w+)\]\((\w+)/(\w+)\.py\)", (HERE / "README.md").read_text(), re.MULTILINE)
    assert listed == [(script.name, script.path.parent.name, script.name) for script in scripts()]


def test_each_script_has_a_session_that_installs_what_it_needs() -> None:
    sessions = Path(__file__).parents[2].joinpath("noxfile.py").read_text()
    needs = {script.needs for script in scripts()} - {None}
    assert {name for name in needs if f'"{name}"' not in sessions and f"\ndef {name}(" not in sessions} == set()


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
        ("right", '"""What it is."""\n# Start: python\n# Unseen: it looks right\n'),
    ],
)
def test_a_header_that_is_not_complete_is_refused(tmp_path: Path, folder: str, text: str) -> None:
    path = tmp_path / folder / "script.py"
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(ValueError, match=r"begin with a docstring|for a wrong script"):
        read(path)


RIGHT, WRONG = scripts()[0], scripts()[-1]
PRINTED = Run(0, "loss 0.5", "", None)


VERDICTS = ("CONFORMS", "UNDECIDED", "DOES NOT CONFORM")


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (RIGHT, "CONFORMS"),
        (replace(RIGHT, undecided="noise"), "UNDECIDED"),
        (WRONG, "DOES NOT CONFORM"),
        (replace(WRONG, undecided="may be right"), "UNDECIDED"),
        (replace(WRONG, unseen="looks right"), "CONFORMS"),
    ],
)
def test_the_verdict_must_be_the_one_that_the_header_states(script: Script, expected: str) -> None:
    assert [complaint(script, verdict, PRINTED, PRINTED) is None for verdict in VERDICTS] == [
        verdict == expected for verdict in VERDICTS
    ]


def test_a_right_script_that_is_accused_is_a_false_alarm() -> None:
    assert "a false alarm" in str(complaint(RIGHT, "DOES NOT CONFORM", PRINTED, PRINTED))


def test_what_a_script_prints_must_not_change() -> None:
    assert "loss 0.25" in str(complaint(RIGHT, "CONFORMS", PRINTED, Run(0, "loss 0.25", "", None)))
    assert "fails by itself" in str(complaint(RIGHT, "CONFORMS", Run(1, "", "no module", None), PRINTED))


def test_a_script_that_takes_too_long_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched, "TIME_LIMIT", 0.5)
    done = run([sys.executable, "-c", "import time; time.sleep(100)"])
    assert done.code
    assert done.errors.endswith("it took more than 0.5 s")


_TWICE = """
from dataclasses import replace
from fixtures import watched_scripts
from fixtures.watched import chosen

[script] = chosen(["plain_loop"])
print(watched_scripts.main(["plain_loop"]))
watched_scripts.chosen = lambda names: [replace(script, undecided="not so")]
print(watched_scripts.main([]))
"""


def test_scripts_in_forks_have_the_verdict_of_their_headers() -> None:
    done = run([sys.executable, "-c", _TWICE])
    assert re.findall(r"^[01]$", done.output, re.MULTILINE) == ["0", "1"], done.errors
    assert "plain_loop: CONFORMS, expected UNDECIDED" in done.output


def test_scripts_that_start_processes_themselves_run_in_no_fork() -> None:
    by_name = {script.name: ranks(script) for script in scripts()}
    assert [by_name[name] for name in ("plain_loop", "ddp_plain", "fsdp2_mesh_same_rows")] == [0, 2, 4]
    assert [by_name[name] for name in ("ddp_spawn", "horovod_plain", "accelerate_plain")] == [None] * 3
