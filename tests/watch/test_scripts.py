"""The test scripts of `conformance watch` have complete headers; `python -m fixtures.watched` runs them."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from conformance.laws.chapters.watch_scripts import LAWS
from conformance.watch.judging.properties import FACTS
from conformance.watch.verdict import stated
from fixtures.specimens import specimens
from fixtures.watched import HERE, Run, Script, complaint, read, run, scripts
from fixtures.watched_mutants import compared, unflagged
from fixtures.watched_programs import Watched
from fixtures.watched_scripts import complaints, ranks


def test_every_script_has_a_header_and_is_in_the_table() -> None:
    listed = re.findall(r"^\| \[(\w+)\]\((\w+)/(\w+)\.py\)", (HERE / "README.md").read_text(), re.MULTILINE)
    assert listed == [(script.name, script.path.parent.name, script.name) for script in scripts()]
    assert len(listed) == len({name for name, *_ in listed})


def test_each_script_has_a_session_that_installs_what_it_needs() -> None:
    sessions = Path(__file__).parents[2].joinpath("noxfile.py").read_text()
    needs = {script.needs for script in scripts()} - {None}
    assert {name for name in needs if f'"{name}"' not in sessions and f"\ndef {name}(" not in sessions} == set()


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
def test_an_incomplete_header_is_refused(tmp_path: Path, folder: str, text: str) -> None:
    path = tmp_path / folder / "script.py"
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(ValueError, match=r"start with a docstring|only for a wrong script"):
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


SEEN = Watched("zero", "DOES NOT CONFORM", "", laws=("watch/cleared",), open=("data.same-order",))


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        (SEEN, []),
        (replace(SEEN, verdict="CONFORMS"), ["CONFORMS, expected DOES NOT CONFORM"]),
        (replace(SEEN, laws=("watch/fresh",)), ["the law is watch/fresh, expected watch/cleared"]),
        (replace(SEEN, open=()), ["open are none, expected data.same-order"]),
        (replace(SEEN, as_stated="CONFORMS"), []),
        (replace(SEEN, as_stated="UNDECIDED"), ["UNDECIDED with ranks=sum, expected CONFORMS"]),
    ],
)
def test_law_and_open_facts_must_be_those_in_the_header(seen: Watched, said: list[str]) -> None:
    script = replace(WRONG, law="watch/cleared", open=("data.same-order",), expect=("ranks=sum",))
    assert [*complaints(script, seen)] == said


def test_a_violation_in_a_correct_script_is_a_false_alarm() -> None:
    assert "a false alarm" in str(complaint(RIGHT, "DOES NOT CONFORM", PRINTED, PRINTED))


def test_each_wrong_script_has_its_law_or_open_facts_or_a_reason() -> None:
    """A law only if it needs no other package, because `fixtures.watched_scripts` runs these everywhere."""
    wrong = [script for script in scripts() if script.cause is not None]
    unflagged = [script for script in wrong if script.expected != "DOES NOT CONFORM"]
    assert [script.name for script in unflagged if script.law or not (script.open or script.unseen)] == []
    flagged = [
        script for script in wrong if script not in unflagged and script.needs is None and ranks(script) is not None
    ]
    assert [script.name for script in flagged if script.law is None] == []


def test_headers_name_existing_laws_facts_and_values() -> None:
    everything = scripts()
    assert {script.law for script in everything} <= LAWS.keys() | {None}
    assert {code for script in everything for code in script.open} <= FACTS.keys()
    with_values = [script for script in everything if script.expect]
    assert with_values
    for script in with_values:
        stated_values = dict(map(stated, script.expect))
        assert script.expected == "UNDECIDED"
        assert stated_values.items() <= {FACTS[code] for code in script.open}


def test_the_output_of_a_script_must_not_change() -> None:
    assert "loss 0.25" in str(complaint(RIGHT, "CONFORMS", PRINTED, Run(0, "loss 0.25", "", None)))
    assert "fails without a watch" in str(complaint(RIGHT, "CONFORMS", Run(1, "", "no module", None), PRINTED))


def test_scripts_in_forks_have_the_verdict_of_their_headers() -> None:
    done = run([sys.executable, "-m", "fixtures.watched_scripts", "plain_loop"])
    assert done.output == "1 scripts, 0 differ from their headers\n", done.errors
    assert done.code == 0


def test_scripts_that_start_processes_do_not_run_in_forks() -> None:
    by_name = {script.name: ranks(script) for script in scripts()}
    assert [by_name[name] for name in ("plain_loop", "ddp_plain", "fsdp2_mesh_same_rows")] == [0, 2, 4]
    assert [by_name[name] for name in ("ddp_spawn", "horovod_plain", "accelerate_plain")] == [None] * 3


# The page of mutants that a watch does not flag; `python -m fixtures.watched_programs mutants` runs them.


def test_the_page_lists_only_mutants() -> None:
    assert unflagged().keys() <= {specimen.name for specimen in specimens("mutants")}


def test_a_difference_from_the_page_is_a_complaint() -> None:
    known = unflagged()
    missed = next(name for name, one in known.items() if one.has_meaning)
    none = next(name for name, one in known.items() if not one.has_meaning)
    verdicts = {"clip_before_unscale": "DOES NOT CONFORM", missed: "UNDECIDED", none: "CONFORMS"}
    assert compared(verdicts) == (
        "1 of 2 that have a meaning without a plan are flagged (50%), 1 have none",
        [],
    )
    changed = {"clip_before_unscale": "CONFORMS", missed: "DOES NOT CONFORM", none: "DOES NOT CONFORM"}
    assert [text.split()[0] for text in compared(changed)[1]] == ["clip_before_unscale", *sorted((missed, none))]
