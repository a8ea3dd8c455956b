"""Weights and gradients after every step on every rank: bit-identical, or within the bound, or a failure."""

from __future__ import annotations

import math

import pytest

from conformance.verdict.comparison import same

EXACT = (
    "single-samples-fp32-sgd",
    "single-batched-fp64-momentum",
    "single-acc3-bf16-clip-value",
    "ddp-w2-fp32-weighted",
    "ddp-w2-acc2-fp16-momentum",
    "ddp-w3-acc2-fp32-decay",
    "ddp-w4-fp16-overflow",
    "horovod-w2-fp16-compression-momentum",
    "ddp-w2-fp32-ranks-start-apart",
)


@pytest.mark.parametrize("name", EXACT)
def test_right_numbers_pass_exactly(follow, name):
    judgement = follow(name).expect("PASS (exact)")
    assert all(guard.passed for guard in judgement.guards)
    assert judgement.power.sufficient
    assert judgement.notes == []
    assert (judgement.difference, judgement.divergence, judgement.suspects.explained_by) == (None, None, ())


@pytest.mark.parametrize("step", [0, 3, 5])
def test_one_ulp_in_one_weight_fails(follow, ulp, step):
    run = follow("single-acc2-fp32-momentum")
    event = run.of("step")[step]
    event["weights"][1] += ulp(event["weights"][1], run.case)
    if step == 5:
        run.of("finished")[0]["weights"] = event["weights"]
    judgement = run.expect("FAIL (numerics)")
    found = judgement.difference
    assert (found.step, found.rank, found.quantity, found.index, found.bound) == (step, 0, "weights", 1, 0)
    assert judgement.headline.startswith(f"step {step}, rank 0: weight[1] becomes ")


def test_one_ulp_on_one_rank_diverges(follow, ulp):
    run = follow("ddp-w3-fp32-momentum")
    weights = run.of("step", rank=2)[3]["weights"]
    weights[0] += ulp(weights[0], run.case)
    judgement = run.expect("DIVERGED")
    assert (judgement.divergence.window, judgement.divergence.step) == (3, 3)
    assert judgement.divergence.weights[0] == judgement.divergence.weights[1] != judgement.divergence.weights[2]
    assert judgement.headline == "the ranks have different weights after window 3"
    assert (judgement.difference.step, judgement.difference.rank) == (3, 2)


def test_ranks_that_agree_at_the_end_and_differ_in_between_diverge(follow):
    run = follow("ddp-w2-fp32-sgd")
    run.of("step", rank=1)[2]["weights"][0] += 1.0
    judgement = run.judged()
    assert run.of("step", rank=0)[-1]["weights"] == run.of("step", rank=1)[-1]["weights"]
    assert (judgement.verdict, judgement.divergence.window) == ("DIVERGED", 2)


def test_ranks_whose_windows_are_placed_apart_agree_where_each_step_does(follow):
    """All have lost the window: the trace of one shows it as the last one, the rows of the other as the first."""
    run = follow("ddp-w2-fp32-sgd", windows=5)
    for event in run.ranks[1]:
        if event["window"] is not None:
            event["window"] += 1
    assert run.judged().verdict == "FAIL (numerics)"
    run.remove(*(event for event in run.ranks[1] if event["window"] == 5))
    assert run.judged().verdict == "DIVERGED"


def test_one_ulp_on_all_ranks_alike_fails(follow, ulp):
    run = follow("ddp-w2-fp32-momentum")
    for event in run.everywhere("step", 2):
        event["weights"][0] += ulp(event["weights"][0], run.case)
    judgement = run.judged()
    assert (judgement.verdict, judgement.divergence) == ("FAIL (numerics)", None)
    assert judgement.difference.step == 2


def test_an_ulp_of_fp64_shows_in_the_headline(follow, ulp):
    run = follow("single-batched-fp64-momentum")
    event = run.of("step")[1]
    event["weights"][0] += ulp(event["weights"][0], run.case)
    judgement = run.judged()
    observed, expected = judgement.headline.partition(" becomes ")[2].split(", expected ")
    assert float(observed) == event["weights"][0] != float(expected)


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        ((0.0,), (-0.0,), True),
        ((math.nan, 1.0), (-math.nan, 1.0), True),
        ((None,), (None,), True),
        ((1.0,), (math.nextafter(1.0, 2.0),), False),
        ((math.inf,), (-math.inf,), False),
        ((math.nan,), (1.0,), False),
        ((None,), (0.0,), False),
    ],
)
def test_ranks_hold_the_same_numbers(one, other, alike):
    assert same(one, other) is alike
    assert same(other, one) is alike


def test_exact_weights_decide_where_a_gradient_does_not_fit(follow):
    """As where an optimizer ascends the negated loss: it has been read where the step did not use it."""
    run = follow("ddp-w2-acc2-fp32-momentum")
    for event in run.everywhere("step", 1):
        event["gradients"] = [-gradient for gradient in event["gradients"]]
    judgement = run.expect("PASS (exact)", has="weights bit-identical to the oracle")
    assert any("gradients of the steps could not be read" in note for note in judgement.notes)


@pytest.mark.parametrize("known", [False, True])
def test_without_gradients_weights_are_compared(follow, ulp, known):
    run = follow("ddp-w2-acc2-fp32-momentum")
    for event in run.everywhere("step", 1) + (run.everywhere("step", 2) if not known else []):
        event["gradients"] = None
    assert run.judged().verdict == "PASS (exact)"
    for event in run.everywhere("step", 1):
        event["weights"][0] += ulp(event["weights"][0], run.case)
    judgement = run.expect("FAIL (numerics)")
    assert (judgement.difference.step, judgement.difference.quantity) == (1, "weights")


@pytest.mark.parametrize("rank", [None, 1])
def test_a_wrong_gradient_fails_where_weights_have_a_bound(follow, rank):
    run = follow("ddp-w2-fp32-adamw")
    for event in run.everywhere("step", 1) if rank is None else [run.of("step", rank)[1]]:
        event["gradients"][3] *= 2
    judgement = run.judged()
    assert (judgement.verdict, judgement.divergence) == ("FAIL (numerics)", None)
    found = judgement.difference
    assert (found.step, found.rank, found.quantity, found.index) == (1, rank or 0, "gradient", 3)
    assert "the gradient of bias is" in judgement.headline


def test_within_the_bound_passes_as_bounded(follow):
    run = follow("ddp-w2-fp32-adamw")
    right = run.trajectory.steps[4].weights
    assert right.radius[1] > 0
    for event in run.everywhere("step", 4):
        event["weights"][1] = float(right.center[1]) + 0.99 * float(right.radius[1])
    judgement = run.expect("PASS (bounded)")
    assert judgement.power.gap > 1


def test_just_outside_the_bound_fails(follow):
    run = follow("ddp-w2-fp32-adamw")
    right = run.trajectory.steps[4].weights
    for event in run.everywhere("step", 4):
        event["weights"][1] = float(right.center[1]) - 1.01 * float(right.radius[1])
    judgement = run.expect("FAIL (numerics)")
    found = judgement.difference
    assert (found.step, found.quantity, found.index) == (4, "weights", 1)
    assert 0 < found.bound < found.error
    assert " ± " in judgement.headline


def test_numbers_of_another_precision_fail(follow, case):
    run = follow("single-acc2-fp32-adamw")
    run.case = case("single-acc2-bf16-adamw")
    run.expect("FAIL (numerics)", headline="the trainer computes in fp32 instead of bf16: its numbers match fp32")


@pytest.mark.parametrize(("value", "said"), [("nan", "nan"), ("inf", "inf"), ("-inf", "-inf")])
def test_weights_that_are_no_numbers_fail(follow, value, said):
    run = follow("ddp-w2-fp32-momentum")
    for event in [*run.everywhere("step", 5), *run.everywhere("finished", 0)]:
        event["weights"] = [value] * 3
    judgement = run.judged()
    assert (judgement.verdict, judgement.divergence) == ("FAIL (numerics)", None)
    assert judgement.headline.startswith(f"step 5, rank 0: weight[0] becomes {said}, expected ")
    assert judgement.difference.error is None


def test_nan_on_one_rank_diverges(follow):
    run = follow("ddp-w2-fp32-momentum")
    run.of("step", rank=1)[3]["weights"][0] = "nan"
    judgement = run.expect("DIVERGED")
    assert math.isnan(judgement.divergence.weights[1][0])


def test_a_missing_gradient_fails_where_weights_have_a_bound(follow):
    run = follow("single-batched-fp32-adamw")
    run.of("step")[0]["gradients"] = [None] * 3
    judgement = run.expect("FAIL (numerics)", "weight had no gradient in the step of window 0, or no optimizer")
    assert judgement.notes[0].startswith("step 0, rank 0: the gradient of weight[0] is missing, expected ")


@pytest.mark.parametrize("length", [0, 3, 5])
def test_vectors_of_another_length_fail(follow, length):
    run = follow("single-batched-fp32-momentum")
    weights = run.of("step")[0]["weights"]
    run.of("step")[0]["weights"] = [*weights, 0.0][:length]
    judgement = run.expect("FAIL (numerics)")
    assert judgement.difference.step == 0
