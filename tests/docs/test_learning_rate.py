"""The thresholds of the learning rate, against iteration in rationals just below and just above them."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from math import prod

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from conformance.workloads.data_sets import LINE, NOISY_LINE, points
from tools.learning_rate import (
    PRECISION,
    crossings,
    diverges_from,
    factors,
    oscillates_from,
    outcome,
    settled,
)

ONE_BY_ONE = [points([point]) for point in NOISY_LINE]
RATES = [0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256]
NEAR = Fraction(1, 2**20)

quarters = st.integers(-32, 32).map(lambda quarter: Fraction(quarter, 4))
batches = st.lists(st.tuples(quarters.filter(bool), quarters), min_size=1, max_size=5).map(points)


def descended(weight, lr, batches, epochs):
    """The weight after each epoch, straight from the definition of the loss."""
    visited = [weight]
    for _ in range(epochs):
        for batch in batches:
            slope = sum(-2 * s.x[0] * (s.y - weight * s.x[0]) for s in batch) / len(batch)
            weight -= lr * slope
        visited.append(weight)
    return visited


def errors(batch, lr, steps=4):
    best = sum(s.x[0] * s.y for s in batch) / sum(s.x[0] ** 2 for s in batch)
    return [weight - best for weight in descended(best + 1, lr, [batch], steps)]


@given(batches)
def test_one_batch_converges_below_n_over_the_sum_of_squares_and_not_from_there_on(batch):
    threshold, same = diverges_from([batch])
    assert threshold == same == len(batch) / sum(s.x[0] ** 2 for s in batch)
    below, at, above = (errors(batch, threshold * (1 + offset)) for offset in (-NEAR, 0, NEAR))
    assert all(abs(after) < abs(before) for before, after in pairwise(below))
    assert at == [1, -1, 1, -1, 1]
    assert all(abs(after) > abs(before) for before, after in pairwise(above))


@given(batches)
def test_one_batch_overshoots_above_half_of_that(batch):
    threshold = oscillates_from([batch])
    assert 2 * threshold == diverges_from([batch])[0]
    assert all(error > 0 for error in errors(batch, threshold * (1 - NEAR)))
    assert errors(batch, threshold)[1:] == [0] * 4
    past = errors(batch, threshold * (1 + NEAR))
    assert all(before * after < 0 for before, after in pairwise(past))


@given(st.lists(batches, min_size=2, max_size=4))
# Distant curvatures, between which a crossing is searched.
@example([points([(Fraction(1, 4), Fraction(0))]), points([(Fraction(17, 4), Fraction(0))])])
def test_several_batches_in_turn(several):
    """Just below and above each crossing, and far beyond the last, two runs converge or diverge."""
    found = crossings(several)
    assert diverges_from(several) == found[0]
    assert len(found) % 2 == 1
    for number, (low, high) in enumerate(found):
        assert 0 < high - low < low * PRECISION
        diverges_above = number % 2 == 0
        for rate, grows in ((low, not diverges_above), (high, diverges_above)):
            assert parting(several, rate) == grows
            assert (outcome(several, rate) == "diverging") == grows
    assert parting(several, 4 * found[-1][1])


def parting(several, rate):
    """Whether the difference of two runs fails to shrink in some epoch; their common constant cancels."""
    one, other = (descended(Fraction(start), rate, several, 3) for start in (0, 1))
    apart = [abs(a - b) for a, b in zip(one, other, strict=True)]
    [grows] = {after >= before for before, after in pairwise(apart)}
    return grows


@given(st.lists(batches, min_size=2, max_size=4), st.integers(1, 200))
def test_outcomes_change_at_crossings_only(several, part):
    rate = crossings(several)[-1][1] * Fraction(part, 150)
    passed = sum(high <= rate for _, high in crossings(several))
    assert (outcome(several, rate) == "diverging") == (passed % 2 == 1)


@given(st.lists(batches, min_size=1, max_size=4), st.integers(1, 64))
def test_what_has_settled_stays(several, part):
    rate = oscillates_from(several) * Fraction(part, 65)
    cycle = settled(several, rate)
    assert descended(cycle[-1], rate, several, 2) == [cycle[-1]] * 3
    assert len(cycle) == len(several)


def test_the_exercise_sweep():
    """Converging up to 1/32, where the step on x = 4 overshoots; then ending in a cycle; diverging at 0.256."""
    found = [outcome(ONE_BY_ONE, Fraction(rate)) for rate in RATES]
    assert found == ["converging"] * 5 + ["oscillating"] * 3 + ["diverging"]
    assert oscillates_from(ONE_BY_ONE) == Fraction(1, 32)
    low, high = diverges_from(ONE_BY_ONE)
    assert 0.128 < low < high < 0.256
    # Above it is an island around 1/2, where the step on x = 1 removes all error.
    assert [round(float(rate), 4) for rate, _ in crossings(ONE_BY_ONE)] == [0.1518, 0.4986, 0.5014]
    assert outcome(ONE_BY_ONE, Fraction(1, 2)) == "oscillating"
    for rate in RATES[:-1]:
        steps = descended(Fraction(0), Fraction(rate), ONE_BY_ONE, 10)
        last = settled(ONE_BY_ONE, Fraction(rate))[-1]
        # The start's share shrinks by the product of the factors in each epoch.
        assert last - steps[10] == last * prod(factors(ONE_BY_ONE, Fraction(rate))) ** 10


def test_all_four_points_a_step():
    assert diverges_from([points(LINE)]) == diverges_from([points(NOISY_LINE)]) == (Fraction(2, 15),) * 2


def test_bad_input():
    with pytest.raises(ValueError, match="x = 0"):
        oscillates_from([points([(0, 1)])])
    with pytest.raises(ValueError, match="nothing settles"):
        settled([points(LINE)], Fraction(2, 15))
