"""What a script shows: the first wrong step, an error or a hang; nothing for an undecided case."""

from __future__ import annotations

from fractions import Fraction
from types import SimpleNamespace

import pytest

from conformance.cases.case import Case
from conformance.oracle.affine import Enclosure
from conformance.oracle.recurrence import Recurrence, ScalerHistory, Step
from conformance.repro.showing import (
    TIMEOUT,
    Answer,
    CannotShow,
    Ending,
    Numbers,
    shown,
    wrong_numbers,
)
from conformance.verdict.evidence import Attempt
from conformance.verdict.judgement import Judgement

WINDOWS = 3
PROBLEM = Case("single", 1, 2, "fp32", "momentum").problem


def box(value, radius=Fraction(0)):
    return Enclosure((Fraction(value),), (radius,))


def own(attempts, **more):
    """The record of a rank with these attempts."""
    known = {"raised": None, "averaged_early": False, "scalars_in_tensors": False, "trained": None}
    return SimpleNamespace(steps=tuple(attempts), attempts=tuple(attempts), **known | {"final_weights": None} | more)


def attempt(window, weights, gradients=None, seen_in=None):
    return Attempt(window, window if seen_in is None else seen_in, True, gradients, weights, None)


def rank(*weights, gradients=(1.0,) * WINDOWS):
    """A rank with a step in each window, and these weights after it."""
    steps = enumerate(zip(weights, gradients, strict=True))
    attempts = [attempt(window, (weight,), (gradient,)) for window, (weight, gradient) in steps]
    return own(attempts, final_weights=weights[-1:])


def answer(*weights, radius=Fraction(0), name=""):
    """An answer whose gradients are all 1."""
    steps = (Step(window, box(1.0, radius), box(weight, radius)) for window, weight in enumerate(weights))
    return Answer(name, tuple(steps))


def numbers(*ranks, right=()):
    return list(wrong_numbers(ranks, right or [answer(1.0, 2.0, 3.0)]))


def judgement(*ranks, verdict="FAIL (numerics)"):
    return Judgement(verdict, "the headline", ranks=ranks)  # type: ignore[arg-type]


def right_judgement(verdict):
    """The judgement of one correct rank."""
    right = Recurrence(PROBLEM).run()
    attempts = [
        attempt(one.window, tuple(map(float, one.weights.center)), tuple(map(float, one.gradient.center)))
        for one in right.steps
    ]
    ranks = (own(attempts, final_weights=attempts[-1].weights),)
    return Judgement(verdict, "the headline", ranks=ranks, trajectory=right)  # type: ignore[arg-type]


def test_the_first_wrong_step_and_then_the_last():
    first, last = numbers(rank(1.0, 2.5, 3.5))
    assert first == Numbers(2, 1, "weights", ((2.0, 0.0),), ((0, 0, 2.5),) * 2)
    assert last == Numbers(3, 2, "weights", ((3.0, 0.0),), ((0, 0, 3.5),) * 2)


@pytest.mark.parametrize(
    ("ranks", "first"),
    [
        (
            [rank(1.0, 2.0, 3.0), rank(1.0, 2.0, 3.5)],
            Numbers(3, 2, "weights", ((3.0, 0.0),), ((1, 0, 3.5),) * 2),
        ),
        ([own([], final_weights=(0.5,))], Numbers(1, 0, "weights", ((1.0, 0.0),), ((0, 0, 0.5),) * 2)),
        ([rank(1.0, 2.0, gradients=(1.0, 1.0))], Numbers(3, 2, "weights", ((3.0, 0.0),), ((0, 0, 2.0),) * 2)),
        (
            [own([attempt(at, (one,), (1.0,), at // 2) for at, one in enumerate((1.0, 1.5, 2.5, 3.0))])],
            Numbers(2, 1, "weights", ((2.0, 0.0),), ((0, 0, 1.5), (0, 0, 3.0))),
        ),
        (
            [rank(1.0, 2.0, 3.0, gradients=(1.0, 1.0, 2.0))],
            Numbers(3, 2, "gradient", ((1.0, 0.0),), ((0, 0, 2.0),) * 2),
        ),
    ],
    ids=["one rank alone", "no steps", "a step not taken", "two steps in each window", "only gradients"],
)
def test_what_is_wrong_first(ranks, first):
    """With two steps in each window, both belong to the window of their forwards."""
    assert numbers(*ranks)[0] == first


def test_ranks_that_differ_within_the_bound():
    [first, *_] = numbers(
        rank(1.0, 2.0, 3.0), rank(1.0, 2.25, 3.0), right=(answer(1.0, 2.0, 3.0, radius=Fraction(1, 2)),)
    )
    assert (first.windows, first.seen) == (2, ())
    [(value, allowed)] = first.expected
    assert (value, allowed) == (2.0, pytest.approx(0.5))
    assert allowed > 0.5


def test_a_value_that_is_right_in_another_way_shows_nothing():
    right = answer(1.0, 2.0, 3.0), answer(1.0, 2.5, 4.0, name="last_window=drop")
    [first, *_] = numbers(rank(1.0, 2.5, 3.5), right=right)
    assert (first.windows, first.expected) == (3, ((3.0, 0.0),))
    assert first.others == (("last_window=drop", ((4.0, 0.0),)),)


def test_answers_that_differ_by_rounding_are_as_one():
    right = answer(1.0, 2.0, 3.0, radius=Fraction(1, 4)), answer(1.0, 2.125, 3.0, radius=Fraction(1, 4))
    [first, *_] = numbers(rank(1.0, 2.5, 3.0), right=right)
    assert first.others == ()
    [(value, allowed)] = first.expected
    assert value == 2.0 and allowed == pytest.approx(0.375)


@pytest.mark.parametrize(
    ("found", "problem", "why"),
    [
        (right_judgement("FAIL (law)"), PROBLEM, "a script has nothing to compare: the headline"),
        (right_judgement("INCONCLUSIVE"), PROBLEM, "the case is undecided: the headline"),
        (judgement(), PROBLEM, "no numbers show the failure: the headline"),
        (judgement(), Case("single", 1, 1, "fp32", "own-order").problem, "which samples the trainer should have read"),
    ],
)
def test_nothing_to_show(found, problem, why):
    with pytest.raises(CannotShow, match=why):
        shown(found, problem)


def ended(exit, raised=None, *, finished=False, steps=1):
    error = None if raised is None else SimpleNamespace(type=raised[0], message=raised[1])
    outcome = SimpleNamespace(exit=exit, finished=finished)
    return SimpleNamespace(attempts=(None,) * steps, raised=error, outcome=outcome)


def test_endings():
    windows = len(PROBLEM.windows)
    failing = ended("exited 1", ("ValueError", "no such thing\nmore"), steps=windows)
    assert shown(judgement(failing, verdict="CRASH"), PROBLEM) == [Ending(windows, ("ValueError: no such thing",))]
    hanging = ended("killed", finished=True)
    assert shown(judgement(hanging, verdict="HANG"), PROBLEM) == [Ending(2), Ending(windows)]


@pytest.mark.parametrize(
    ("exit", "raised", "says"),
    [
        ("exited 3 before it finished", None, "terminated with exit code 3"),
        ("killed by SIGKILL", None, "terminated with signal SIGKILL"),
        ("exited 0 before it finished", ("SystemExit", "0"), "a process exited with 0 before the end of training"),
    ],
)
def test_a_process_that_dies_or_leaves(exit, raised, says):
    first, *_ = shown(judgement(ended(exit, raised), verdict="CRASH"), PROBLEM)
    assert isinstance(first, Ending)
    assert first.errors[0] == says
    assert TIMEOUT in first.errors


def test_the_right_answer_takes_no_trainers_word_for_what_is_skipped():
    """A trainer that steps with overflowing gradients would be correct if its own steps counted as expected."""
    problem = Case("single", 1, 1, "fp16", "overflow").problem
    right = Recurrence(problem).run()
    assert right.skips
    followed = Recurrence(problem, ScalerHistory(frozenset(), right.scales[:1] * len(problem.windows))).run()
    stepping = own([attempt(step.window, tuple(map(float, step.weights.center))) for step in followed.steps])
    found = Judgement("FAIL (numerics)", "the headline", ranks=(stepping,), trajectory=followed)  # type: ignore[arg-type]
    [first, *_] = shown(found, problem)
    assert isinstance(first, Numbers)
    expected = next(step for step in right.steps if step.window + 1 == first.windows)
    assert [value for value, _ in first.expected] == [float(one) for one in expected.weights.center]
