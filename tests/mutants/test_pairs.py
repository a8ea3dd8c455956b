"""Pairs of releases: each is complete, and names existing cases and laws. `nox -s history` runs them."""

from __future__ import annotations

import ast
import re
from datetime import date

import pytest

from conformance.adapter.declaration import Declaration
from conformance.cases.matrix import plan
from conformance.laws.law import laws
from conformance.results.result_lines import NOT_CONFORMING
from fixtures.history import todays
from fixtures.pairs import FOLDER, pairs, read
from fixtures.specimens import SpecimenError

PAIRS = pairs()
BACKENDS = ("single", "ddp", "deepspeed")
MESSAGE = """It steps twice.

Source: https://github.com/nobody/nothing/issues/1
Class: accumulation
Wrong: nothing==1.0
Right: nothing==1.1
Cases: single-batched-fp32-sgd
Expected: FAIL (numerics)"""


@pytest.fixture(scope="module")
def case_ids():
    everything = Declaration(
        backends=BACKENDS,
        precisions=("fp64", "fp32", "bf16", "fp16"),
        losses=("mean", "weighted"),
        schedules=("step", "epoch"),
        resume=True,
        own_order=True,
        unfreezes=True,
        last_batch="use",
    )
    return {one.case.id for backend in BACKENDS for one in plan(everything, backend) if not one.undeclared}


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_a_pair_names_what_there_is(pair, case_ids):
    assert set(pair.cases) <= case_ids
    assert pair.laws <= {law.id for law in laws()}
    assert pair.expected in NOT_CONFORMING
    assert all(re.fullmatch(r"https://github\.com/[\w.-]+/[\w.-]+/(issues|pull)/\d+", url) for url in pair.source)


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_a_pair_is_two_releases_of_one_framework(pair):
    (framework, wrong), (same, right) = pair.wrong.split("=="), pair.right.split("==")
    assert framework == same
    assert [int(part) for part in wrong.split(".")] < [int(part) for part in right.split(".")]


@pytest.mark.parametrize("path", sorted(FOLDER.rglob("*.py")), ids=lambda path: path.stem)
def test_its_trainer_uses_nothing_private(path):
    tree = ast.parse(path.read_text())
    imported = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert {module for module in imported if module.startswith("conformance")} == {"conformance"}
    assert [module for module in imported if re.search(r"(^|\.)_[^_]", module)] == []
    used = [node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    assert [name for name in used if re.match(r"_[^_]", name)] == []


def test_each_pair_has_its_turn_in_a_week():
    names = [pair.name for pair in PAIRS]
    turns = [todays(names, date(2026, 12, day)) for day in range(1, 8)]
    assert sorted(name for turn in turns for name in turn) == names
    assert max(map(len, turns)) - min(map(len, turns)) <= 1


def test_a_pair_is_read(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(f'"""{MESSAGE}\n"""\n')
    pair = read(path)
    assert (pair.name, pair.wrong, pair.right, pair.companions) == ("mine", "nothing==1.0", "nothing==1.1", ())
    assert (pair.kind, pair.laws, pair.cause, pair.line) == ("accumulation", frozenset(), None, None)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (MESSAGE.replace("Right: nothing==1.1\n", ""), "`Right: ...` is missing"),
        (MESSAGE.replace("Class: accumulation", "Class: bad luck"), "`Class: bad luck` is none of accumulation"),
        (MESSAGE.replace("==1.1", ">=1.1"), "`nothing>=1.1` is not a release"),
        (MESSAGE.replace("Expected", "Verdict"), "but has `Verdict: FAIL (numerics)`"),
    ],
)
def test_a_pair_that_cannot_be_read_is_refused(tmp_path, text, line):
    path = tmp_path / "mine.py"
    path.write_text(f'"""{text}\n"""\n')
    with pytest.raises(SpecimenError, match=re.escape(line)):
        read(path)
