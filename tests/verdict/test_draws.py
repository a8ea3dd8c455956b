"""The random numbers that a model draws after a resume: those that come next, others, or nobody knows."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from conformance.verdict.beside_weights import resumed_draws


def runs(*ranks):
    """Two lives of ranks, each given as the states in which the draws of each life begin; a state leads to the next."""
    lives = zip(*ranks, strict=True)
    return [SimpleNamespace(ranks=[_rank(begins) for begins in life]) for life in lives]


def _rank(begins):
    draws = [SimpleNamespace(before=before, after=before + 1) for before in begins]
    return SimpleNamespace(of=lambda kind: draws)


@pytest.mark.parametrize(
    ("ranks", "wrong"),
    [
        ([([0, 1], [2, 3])], None),
        # A backward that computes forwards again, from the last to the first.
        ([([0, 1, 1, 0], [2])], None),
        ([([0, 1], [0])], "rank 0 draws the random numbers of its forward 1 again"),
        ([([0, 1], [1])], "rank 0 draws the random numbers of its forward 2 again"),
        ([([0, 1], [2]), ([10, 11], [2])], "rank 1 goes on with the random numbers of rank 0"),
        ([([0, 1], [2]), ([0, 1], [2])], None),
    ],
)
def test_what_is_drawn_next(ranks, wrong):
    found = resumed_draws(runs(*ranks))
    assert found.unknown is None
    assert (found.wrong or "").startswith(wrong or "")
    assert (found.wrong is None) == (wrong is None)


@pytest.mark.parametrize("resumed", [[7], []])
def test_what_cannot_be_told(resumed):
    """A trainer may draw numbers itself before its model does, and its forwards may not be seen."""
    found = resumed_draws(runs(([0, 1], resumed)))
    assert found.wrong is None
    assert found.unknown is not None
