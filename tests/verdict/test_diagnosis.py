"""Wrong numbers are traced back to the catalogued fault that makes them."""

from __future__ import annotations

import pytest

from conformance.oracle.affine import Affine
from conformance.oracle.faults import CATALOGUE, SumOverRanks, SumOverWindow, applicable

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
