"""What a script shows: the first wrong step, what raises or hangs, and nothing where nothing is proved."""

from __future__ import annotations

from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import pytest

from conformance.cases.case import Case
from conformance.oracle.affine import Enclosure
from conformance.oracle.recurrence import Recurrence, ScalerHistory, Step
from conformance.repro.showing import CannotShow, Ending, Numbers, shown
from conformance.verdict.evidence import Attempt
from conformance.verdict.judgement import Judgement
from conformance.workloads.precision import PRECISIONS

WINDOWS = 3
PROBLEM: Any = SimpleNamespace(windows=range(WINDOWS), precision=PRECISIONS["fp32"])


def box(value: float, radius: Fraction = Fraction(0)) -> Enclosure:
    return Enclosure((Fraction(value),), (radius,))


def rank(*weights: float, gradients: tuple[float, ...] = (1.0,) * WINDOWS, raised: dict[str, str] | None = None):
    """One that takes a step in each window, after which it has these weights."""
    attempts = tuple(
        Attempt(window, window, True, (gradient,), (weight,), None)
        for window, (weight, gradient) in enumerate(zip(weights, gradients, strict=True))
    )
    return SimpleNamespace(steps=attempts, attempts=attempts, raised=raised, final_weights=weights[-1:])


def judgement(*ranks: object, verdict: str = "FAIL (numerics)", radius: Fraction = Fraction(0)) -> Judgement:
    """The weights are 1, 2 and 3, and all gradients 1."""
    steps = tuple(Step(window, box(1.0, radius), box(window + 1.0, radius)) for window in range(WINDOWS))
    trajectory = SimpleNamespace(steps=steps)
    return Judgement(verdict, "the headline", ranks=ranks, trajectory=trajectory)  # type: ignore[arg-type]


def test_the_first_wrong_step_and_then_the_last():
    first, last = shown(judgement(rank(1.0, 2.5, 3.5)), PROBLEM)
    assert first == Numbers(2, 1, "weights", ((2.0, 0.0),), ((0, 0, 2.5),) * 2)
    assert last == Numbers(3, 2, "weights", ((3.0, 0.0),), ((0, 0, 3.5),) * 2)


def test_a_rank_that_alone_is_wrong():
    [first, *_] = shown(judgement(rank(1.0, 2.0, 3.0), rank(1.0, 2.0, 3.5)), PROBLEM)
    assert first == Numbers(3, 2, "weights", ((3.0, 0.0),), ((1, 0, 3.5),) * 2)


def test_a_trainer_that_never_steps():
    idle = SimpleNamespace(steps=(), attempts=(), raised=None, final_weights=(0.5,))
    [first, *_] = shown(judgement(idle), PROBLEM)
    assert first == Numbers(1, 0, "weights", ((1.0, 0.0),), ((0, 0, 0.5),) * 2)


def test_a_step_that_is_not_taken():
    [first, *_] = shown(judgement(rank(1.0, 2.0, gradients=(1.0, 1.0))), PROBLEM)
    assert first == Numbers(3, 2, "weights", ((3.0, 0.0),), ((0, 0, 2.0),) * 2)


def test_two_steps_in_each_window_are_of_the_window_of_their_forwards():
    pairs = [Attempt(at, at // 2, True, (1.0,), (weight,), None) for at, weight in enumerate((1.0, 1.5, 2.5, 3.0))]
    twice = SimpleNamespace(steps=tuple(pairs), attempts=tuple(pairs), raised=None, final_weights=(3.0,))
    [first, *_] = shown(judgement(twice), PROBLEM)
    assert first == Numbers(2, 1, "weights", ((2.0, 0.0),), ((0, 0, 1.5), (0, 0, 3.0)))


def test_ranks_that_differ_within_the_bound():
    [first, *_] = shown(judgement(rank(1.0, 2.0, 3.0), rank(1.0, 2.25, 3.0), radius=Fraction(1, 2)), PROBLEM)
    assert isinstance(first, Numbers)
    assert (first.windows, first.seen) == (2, ())
    [(value, allowed)] = first.expected
    assert (value, allowed) == (2.0, pytest.approx(0.5))
    assert allowed > 0.5


def test_gradients_where_the_weights_are_right():
    [first] = shown(judgement(rank(1.0, 2.0, 3.0, gradients=(1.0, 1.0, 2.0))), PROBLEM)
    assert first == Numbers(3, 2, "gradient", ((1.0, 0.0),), ((0, 0, 2.0),) * 2)


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (judgement(rank(1.0, 2.0, 3.0), verdict="FAIL (law)"), "a script has nothing to compare: the headline"),
        (judgement(rank(1.0, 2.5, 3.0), verdict="INCONCLUSIVE"), "nothing is proved about it: the headline"),
        (judgement(rank(1.0, 2.0, 3.0), verdict="CRASH"), "raised nothing that a script could show: the headline"),
        (Judgement("FAIL (numerics)", "the headline"), "no numbers show it: the headline"),
    ],
)
def test_nothing_to_show(found, why):
    with pytest.raises(CannotShow, match=why):
        shown(found, PROBLEM)


def test_endings():
    failing = rank(1.0, 2.0, 3.0, raised=SimpleNamespace(type="ValueError", message="no such thing\nmore"))
    assert shown(judgement(failing, verdict="CRASH"), PROBLEM) == [Ending(3, ("ValueError: no such thing",))]
    hanging = rank(1.0, gradients=(1.0,))
    assert shown(judgement(hanging, verdict="HANG"), PROBLEM) == [Ending(2), Ending(3)]


def test_the_right_answer_takes_no_trainers_word_for_what_is_skipped():
    """One that steps with gradients that overflow would be right if its steps were those to take."""
    problem = Case("single", 1, 1, "fp16", "overflow").problem
    right = Recurrence(problem).run()
    assert right.skips
    followed = Recurrence(problem, ScalerHistory(frozenset(), right.scales[:1] * len(problem.windows))).run()
    attempts = [
        Attempt(step.window, step.window, True, None, tuple(map(float, step.weights.center)), None)
        for step in followed.steps
    ]
    stepping = SimpleNamespace(steps=tuple(attempts), attempts=tuple(attempts), raised=None, final_weights=None)
    found = Judgement("FAIL (numerics)", "the headline", ranks=(stepping,), trajectory=followed)  # type: ignore[arg-type]
    [first, *_] = shown(found, problem)
    assert isinstance(first, Numbers)
    expected = next(step for step in right.steps if step.window + 1 == first.windows)
    assert [value for value, _ in first.expected] == [float(one) for one in expected.weights.center]
