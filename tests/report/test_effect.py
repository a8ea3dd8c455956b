"""The size of an error: a factor, a share of the correct norm, missing numbers, or how far ranks are apart."""

from dataclasses import replace

import pytest

from conformance.report.card import cards
from conformance.report.effect import effect
from conformance.results.result_lines import Diverged, FirstDifference, Step

START = Step(0, 0, (1.0, 2.0), (1.0, 2.0))


def wrong(case, quantity, step):
    first = FirstDifference(1, quantity, "p", 0.0, 1.0)
    steps = (START, Step(1, 1, **step))
    return replace(case, first_difference=first, steps=steps, diverged=None, gradient_factors=(), step_factors=())


@pytest.mark.parametrize(
    ("quantity", "step", "expected"),
    [
        # The update is (3, 4), and was (1.5, 2).
        (
            "weights",
            {"expected": (4.0, 6.0), "observed": (2.5, 4.0)},
            "step 1 moves the weights 0.5x as far as it should",
        ),
        # An error of (0, 1), of a norm of 5.
        (
            "weights",
            {"expected": (4.0, 6.0), "observed": (4.0, 7.0)},
            "the update is off by 20% of its norm in step 1",
        ),
        # Nothing should have moved, so the weights, of norm 5 ** 0.5, are the comparison.
        (
            "weights",
            {"expected": (1.0, 2.0), "observed": (1.0, 3.0)},
            "weights are off by 45% of their norm in step 1",
        ),
        (
            "weights",
            {"expected": (4.0, 6.0), "observed": (float("nan"), 4.0)},
            "1 of 2 entries of the update are infinite or NaN in step 1",
        ),
        (
            "weights",
            {"expected": (4.0, 6.0), "observed": (None, 4.0)},
            "1 of 2 entries of the update are missing in step 1",
        ),
        (
            "gradient",
            {
                "expected": (4.0, 6.0),
                "observed": (9.0, 9.0),
                "gradient_expected": (0.0, 2.0),
                "gradient_observed": (0.0, 4.0),
            },
            "gradients are 2x the correct ones in step 1",
        ),
        (
            "gradient",
            {
                "expected": (4.0, 6.0),
                "observed": (9.0, 9.0),
                "gradient_expected": (0.0, 2.0),
                "gradient_observed": (0.01, 2.0),
            },
            "gradients are off by 0.5% of their norm in step 1",
        ),
    ],
)
def test_the_first_wrong_step_is_compared_with_the_correct_one(results, quantity, step, expected):
    assert effect(wrong(results.cases[0], quantity, step)) == expected


def test_a_factor_of_all_steps_and_ranks_that_differ(results):
    case = wrong(results.cases[0], "weights", {"expected": (4.0, 6.0), "observed": (2.5, 4.0)})
    assert effect(replace(case, gradient_factors=(0.75,))) == "gradients are 0.75x the correct ones"
    assert effect(replace(case, step_factors=(2.0,))) == "each step moves the weights 2x as far as it should"
    assert effect(replace(case, step_factors=(2.0**-16,))) == "the update is 65,536x too small"
    apart = Diverged(1, ((3.0, 4.0), (3.0, 4.5)))
    assert effect(replace(case, diverged=apart)) == ("the weights of the ranks differ by 10% of their norm")
    assert effect(replace(case, first_difference=None)) is None


def test_every_failure_of_numbers_says_how_large_it_is_and_what_to_do(results):
    shown = [card for card in cards(results) if card.verdict in ("FAIL (numerics)", "DIVERGED", "CRASH", "HANG")]
    assert {card.verdict for card in shown} == {"FAIL (numerics)", "DIVERGED", "CRASH", "HANG"}
    assert [card.title for card in shown if not (card.effect and (card.advice or card.fix))] == []


@pytest.mark.parametrize(
    ("message", "advice"),
    [
        (
            "no place left. You can pass `spill=True` to `open`. Bye",
            "the error says: You can pass `spill=True` to `open`.",
        ),
        ("shapes differ", "debug the script that the `reproduce` command below writes"),
    ],
)
def test_the_advice_of_an_error_is_the_fix_however_long_the_error_is(results, message, advice):
    case = next(case for case in results.cases if case.verdict == "CRASH")
    case = replace(case, headline=f"rank 0 raised E: {'x' * 400} {message}", reason=None, explained_by=(), findings=())
    [card] = cards(replace(results, cases=(case,)))
    assert card.advice == advice
