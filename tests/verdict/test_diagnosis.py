"""Wrong numbers are traced back to the catalogued fault that makes them."""

from __future__ import annotations

from fractions import Fraction

import pytest

from conformance.oracle.affine import Affine
from conformance.oracle.deviation import deviating
from conformance.oracle.faults import CATALOGUE, NotClipped, SumOverRanks, SumOverWindow, applicable

#: Where each fault shows: the first of these cases that it applies to.
CASES = (
    "ddp-w2-acc3-fp32-momentum",
    "single-acc3-fp32-momentum",
    "ddp-w2-acc2-fp16-clip-value",
    "ddp-w2-acc2-fp32-weighted",
    "single-acc2-fp32-decay",
    "single-acc3-fp32-short-window",
    "ddp-w2-fp32-sgd",
    "ddp-w2-fp16-overflow",
)


@pytest.mark.parametrize("fault", CATALOGUE, ids=lambda fault: fault.name)
def test_each_fault_is_named(follow, case, fault):
    shown = [name for name in CASES if fault in applicable(case(name).problem)]
    assert shown, f"no case of this test shows {fault.name}: add one"
    judgement = follow(shown[0], fault.textbook).judged()
    assert judgement.verdict == "FAIL (numerics)", judgement.headline
    assert judgement.diagnosis is not None
    assert judgement.diagnosis.startswith("the numbers are those of a trainer that ")
    assert fault.text in judgement.diagnosis


def test_right_numbers_have_no_diagnosis(follow):
    assert follow("ddp-w2-acc2-fp32-momentum").judged().diagnosis is None


def test_faults_that_make_the_same_numbers_are_all_named(follow):
    """With two ranks and two micro-batches both sums double the gradient."""
    diagnosis = follow("ddp-w2-acc2-fp32-momentum", SumOverRanks).judged().diagnosis
    assert diagnosis == (
        "the numbers are those of a trainer that sums the ranks' gradients instead of averaging them, "
        "or adds up the micro-batches without dividing by their number"
    )


def test_two_faults_are_told_by_the_one_that_shows_first(follow):
    class AlsoStepsTwiceLater(SumOverWindow):
        def update(self, weights: Affine, vector: Affine, step: int) -> Affine:
            once = super().update(weights, vector, step)
            return super().update(once, vector, step) if step > 2 else once

    judgement = follow("single-acc2-fp32-sgd", AlsoStepsTwiceLater).judged()
    assert judgement.difference.step == 0
    assert judgement.diagnosis == (
        "up to step 2 the numbers are those of a trainer that "
        "adds up the micro-batches without dividing by their number"
    )


@pytest.mark.parametrize(
    ("name", "one", "two"),
    [
        ("ddp-w2-acc3-fp32-momentum", "sum-over-ranks", "sum-over-window"),
        ("ddp-w2-acc3-fp32-momentum", "not-synchronised", "momentum-lost"),
        ("single-acc2-fp32-decay", "sample-dropped", "no-weight-decay"),
        ("ddp-w2-fp32-adamw", "world-divided-twice", "weight-decay-twice"),
    ],
)
def test_two_faults_at_once_are_both_named(follow, name, one, two):
    faults = [fault for fault in CATALOGUE if fault.name in (one, two)]
    judgement = follow(name, deviating(faults)).judged()
    assert judgement.verdict == "FAIL (numerics)"
    causes = judgement.diagnosis.removeprefix("the numbers are those of a trainer that ").split(", or ")
    assert f"{faults[0].text}, and {faults[1].text}" in causes


def test_two_faults_are_not_named_where_one_makes_the_same_numbers(follow):
    """Two ranks and two micro-batches: two of these three cancel."""
    faults = [fault for fault in CATALOGUE if fault.name in ("sum-over-ranks", "window-divided-twice", "loss-summed")]
    diagnosis = follow("ddp-w2-acc2-fp32-momentum", deviating(faults)).judged().diagnosis
    assert diagnosis == ("the numbers are those of a trainer that reduces the loss by a sum where a mean belongs")


def test_a_bound_that_holds_the_right_answer_too_explains_nothing(follow, monkeypatch):
    """However wide it is: then every wrong number lies in it."""

    def widened(self, vector: Affine) -> Affine:
        return vector.widen([Fraction(2**100)] * len(vector))

    run = follow("single-acc2-fp32-clip-value")
    run.of("step")[2]["gradients"][0] += 0.37
    monkeypatch.setattr(NotClipped, "clip", widened)
    assert run.judged().diagnosis is None


def test_nonsense_has_no_diagnosis(follow):
    run = follow("single-acc2-fp32-sgd")
    run.of("step")[2]["gradients"][0] += 0.37
    judgement = run.judged()
    assert (judgement.verdict, judgement.diagnosis) == ("FAIL (numerics)", None)


def test_the_rank_that_is_wrong_is_diagnosed(follow):
    run, wrong = follow("ddp-w2-acc3-fp32-momentum"), follow("ddp-w2-acc3-fp32-momentum", SumOverWindow)
    run.ranks[1] = wrong.ranks[1]
    judgement = run.judged()
    assert judgement.verdict == "DIVERGED"
    assert judgement.diagnosis == (
        "the numbers are those of a trainer that adds up the micro-batches without dividing by their number"
    )
