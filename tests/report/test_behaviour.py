"""Choices of trainers where several behaviours are valid, in the terminal and on the page; and the coverage."""

from __future__ import annotations

from typing import get_args

import pytest

from conformance.report.choices_table import behaviour
from conformance.report.summary import extent, scopes
from conformance.workloads.behaviour import DECLARABLE, WORDS, Way, declarable, split

from .conftest import Page
from .test_terminal import printed


@pytest.fixture
def doing(one_case):
    """The case of a trainer with this valid behaviour."""

    def made(way, declared=None, **fields):
        return one_case | {"behaviour": [{"way": way, "declared": declared}], **fields}

    return made


def test_every_way_has_words_and_every_choice_that_is_declared_has_ways():
    assert list(WORDS) == list(get_args(Way))
    assert {(split(way)[0], one) for way in WORDS for one in declarable(way)} == {
        (choice, way) for choice, ways in DECLARABLE.items() for way in ways
    }


def test_what_costs_the_user_something_and_is_not_declared_is_a_warning(read, page, doing):
    cases = [doing("last_window=carry", id=name) for name in ("a", "b")]
    text = " ".join(printed(read(cases), width=80).split())
    assert "! drops a short last window and leaves its gradients behind" in text
    assert 'If this is intended, add `@trainer(last_window="carry")`' in text
    assert "2 cases, such as a." in text
    assert "CONFORMS: ddp: All 2 cases passed. 1 warning, under Behaviour." in text
    content = page(cases)
    assert "Drops a short last window and leaves its gradients behind" in Page(content).text
    assert content.index('id="matrix"') < content.index('id="behaviour"') < content.index('id="facts"')


@pytest.mark.parametrize("way", [way for way in get_args(Way) if WORDS[way].loss])
def test_what_is_declared_is_no_warning(read, doing, way):
    [warned] = behaviour(read([doing(way)]))
    [declared] = behaviour(read([doing(way, split(way)[1])]))
    assert warned.done[0].warning
    assert not declared.done[0].warning
    assert "(declared)" in printed(read([doing(way, split(way)[1])]), detail="verbose")


def test_what_costs_nothing_is_no_warning(read, page, doing, one_case):
    text = printed(read([doing("last_window=step")]), detail="verbose")
    assert "· steps a short last window, averaged by its true length\n" in text
    assert "warning" not in text
    # A choice that no case shows is left out.
    assert "Behaviour" not in printed(read([one_case]))
    assert 'id="behaviour"' not in page([one_case])


def test_a_failure_is_not_a_warning_too(read, doing):
    """A choice that contradicts its declaration is a failure only; one that is not declared is a warning."""
    failed = doing("last_window=drop", "step", verdict="FAIL (law)", headline="the trainer declares otherwise")
    text = printed(read([failed]), detail="verbose")
    assert "· drops a short last window" in text
    assert "1 warning" not in text
    assert "1 warning" in printed(read([doing("last_window=drop", verdict="FAIL (law)")]))


def test_trainers_that_do_the_same_are_told_together(read, doing):
    one, two = (doing("last_window=step", trainer=name) for name in ("one", "two"))
    three = doing("last_window=drop", trainer="three")
    assert [trainers.names for trainers in behaviour(read([one, two, three]))] == [("three",), ("one", "two")]


def test_a_trainer_that_declares_little_conforms_in_little(read, page, one_case):
    little = {"possible": 189, "declared": 4}
    idle = one_case | little | {"verdict": "UNSUPPORTED", "headline": "not declared"}
    cases = [
        one_case | little,
        *(idle | {"id": what, "undeclared": what} for what in ("precision fp64", "precision bf16", "loss weighted")),
        one_case | {"trainer": "everything", "possible": 189, "declared": 189},
    ]
    [sentence] = scopes(read(cases))
    assert sentence == ("ddp supports 4 of 189 ddp cases; not supported: precision fp64, bf16; loss weighted.")
    assert sentence in " ".join(printed(read(cases), width=80).split())
    assert sentence in Page(page(cases)).text


def test_how_many_of_the_cases_ran(read, page, one_case):
    """The supported cases of each trainer, on each of its backends."""
    ran = one_case | {"possible": 189, "declared": 189}
    other = ran | {"trainer": "two", "target": "two", "declared": 4}
    idle = other | {"id": "idle", "verdict": "UNSUPPORTED", "headline": "not declared", "undeclared": "precision fp64"}
    cases = [ran, ran | {"id": "another"}, other, idle]
    sentence = extent(read(cases))
    assert sentence == "3 run · up to 190 more with --thorough"
    assert f"Coverage: {sentence}\n" in printed(read(cases), width=80)
    assert f"Coverage {sentence}" in Page(page(cases)).text


def test_nothing_is_said_of_how_many_ran_if_all_did(read, one_case):
    whole = one_case | {"possible": 189, "declared": 2}
    assert extent(read([whole, whole | {"id": "another"}])) is None
    assert extent(read([whole])) is not None
    # No chosen case shows what is not supported.
    [sentence] = scopes(read([one_case | {"possible": 189, "declared": 4}]))
    assert sentence == "ddp supports 4 of 189 ddp cases."
