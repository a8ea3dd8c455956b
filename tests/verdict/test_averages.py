"""Averages of weights after a resume: those of the stop, others, or new ones."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from conformance.verdict.beside_weights import resumed_averages


def runs(*ranks):
    """Two lives of ranks. Each is given by its updates: the number of the average, how many came before, its value
    before and after it."""
    return [SimpleNamespace(ranks=[_rank(updates) for updates in life]) for life in zip(*ranks, strict=True)]


def _rank(updates):
    names = ("average", "updates", "before", "after")
    found = [SimpleNamespace(**dict(zip(names, update, strict=True))) for update in updates]
    return SimpleNamespace(of=lambda kind: found)


BEFORE = [(0, 0, 0, 1), (0, 1, 1, 2)]
RIGHT = [(0, 2, 2, 3)]
ANEW = [(0, 0, 2, 3)]


@pytest.mark.parametrize("after", [RIGHT, [], [(0, 2, 2, 3), (1, 0, 0, 3)]])
@pytest.mark.parametrize("at_epoch", [False, True])
def test_averages_that_go_on_or_that_a_trainer_may_mean(after, at_epoch):
    assert resumed_averages(runs((BEFORE, after)), at_epoch=at_epoch).wrong is None


def test_an_average_that_begins_anew():
    found = resumed_averages(runs((BEFORE, RIGHT), (BEFORE, ANEW)), at_epoch=False)
    assert found.wrong.startswith("rank 1 begins its average of the weights anew after the resume, where it had 2 up")


@pytest.mark.parametrize("after", [(0, 2, 5, 6), (0, 1, 2, 3)])
def test_an_average_of_other_values_or_of_another_number_of_updates(after):
    found = resumed_averages(runs((BEFORE, [after])), at_epoch=False)
    assert found.wrong.startswith("rank 0 goes on with another average of the weights after the resume")


def test_a_trainer_that_begins_averages_anew_before_the_stop_may_do_so_after_it():
    again = [*BEFORE, (0, 0, 2, 7)]
    several = [*BEFORE, (1, 0, 0, 7)]
    assert resumed_averages(runs((again, ANEW)), at_epoch=False).wrong is None
    assert resumed_averages(runs((several, [*ANEW, (1, 0, 0, 7)])), at_epoch=False).wrong is None
    assert resumed_averages(runs((BEFORE, ANEW)), at_epoch=True).wrong is None
