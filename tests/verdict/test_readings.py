"""Where more than one answer is right, the verdict names the one that the trainer gave."""

from __future__ import annotations

import pytest

from conformance.oracle.accepted_readings import AveragedInEveryMicroBatch
from conformance.oracle.faults.short_windows import NominalLength
from conformance.oracle.faults.weighted import MeanOfMicroBatchMeans

SHORT = (
    "single-acc2-fp32-short-window",
    "single-acc3-fp64-short-window",
    "ddp-w2-acc3-fp32-short-window",
    "single-acc2-fp16-short-window",
)
UNEVEN = ("single-acc2-fp32-uneven-batch", "ddp-w2-acc2-fp32-uneven-batch")


@pytest.mark.parametrize("name", SHORT)
def test_short_window_averaged_by_its_true_length(follow, name):
    judgement = follow(name).judged()
    assert judgement.verdict == "PASS (exact)"
    assert judgement.ways == ("last_window=step",)


@pytest.mark.parametrize("name", SHORT)
def test_short_window_dropped(follow, name):
    judgement = follow(name, windows=5).judged()
    assert judgement.verdict == "PASS (exact)", judgement.headline
    assert judgement.ways == ("last_window=drop",)


@pytest.mark.parametrize("name", SHORT)
def test_short_window_divided_by_the_nominal_length(follow, name):
    judgement = follow(name, NominalLength).judged()
    assert judgement.verdict == "FAIL (numerics)"
    assert judgement.difference.step == 5
    assert judgement.suspects.explained_by == ("nominal-length",)
    assert judgement.ways == ()


@pytest.mark.parametrize("name", UNEVEN)
def test_uneven_window_by_samples(follow, name):
    judgement = follow(name).judged()
    assert judgement.verdict.startswith("PASS")
    assert judgement.ways == ("last_batch=use", "uneven_window=by samples")


@pytest.mark.parametrize("name", UNEVEN)
def test_uneven_window_by_micro_batches(follow, name):
    judgement = follow(name, MeanOfMicroBatchMeans).judged()
    assert judgement.verdict.startswith("PASS"), judgement.headline
    assert judgement.ways == ("last_batch=use", "uneven_window=by micro-batches")


@pytest.fixture(params=["momentum", "short-window"])
def within_the_wider_bound(follow, request):
    """A run whose gradients are off by what averaging in every micro-batch may round."""
    run = follow(f"ddp-w3-acc2-fp32-{request.param}", AveragedInEveryMicroBatch)
    for event in run.everywhere("step", 5):
        event["gradients"][0] += float(run.trajectory.steps[5].gradient.radius[0]) / 2
        event["weights"][0] += float(run.trajectory.steps[5].weights.radius[0]) / 2
    for rank, step in enumerate(run.everywhere("step", 5)):
        run.of("finished", rank)[0]["weights"] = step["weights"]
    return run


def test_ranks_that_average_in_every_micro_batch(within_the_wider_bound):
    for events in within_the_wider_bound.ranks:
        early = [{**event, "micro_batch": 0} for event in events if event["event"] == "collective"]
        events[:] = [{**event, "seq": seq} for seq, event in enumerate([*events[:-1], *early, events[-1]])]
    judgement = within_the_wider_bound.judged()
    assert judgement.verdict == "PASS (bounded)", judgement.headline
    assert judgement.ways[-1] == "averaging=in every micro-batch"


def test_ranks_that_average_once_have_no_wider_bound(within_the_wider_bound):
    judgement = within_the_wider_bound.judged()
    assert judgement.verdict == "FAIL (numerics)"
    assert judgement.difference.step == 5
