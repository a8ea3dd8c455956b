"""Parameters that are split over the ranks are put together, and judged like whole ones."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from conformance.cases.case import Case
from conformance.laws.subjects import Events
from conformance.trace.events import read
from conformance.verdict.observability import copies_apart

CASE = "ddp-w2-acc2-fp32-momentum"


def shard(run, *held):
    """Lets each rank show only its own weights and gradients."""
    for rank, positions in enumerate(held):
        start = run.of("start", rank)[0]
        run.before(start, {**start, "event": "shards", "held": list(positions)})
        del run.of("shards", rank)[0]["weights"]
        for event in run.ranks[rank]:
            for name in ("weights", "gradients"):
                if event["event"] in ("step", "skip", "finished") and event.get(name):
                    event[name] = [value if at in positions else None for at, value in enumerate(event[name])]


def took_model(run):
    """The model was handed out, so its weights should be visible."""
    for rank in range(len(run.ranks)):
        start = run.of("start", rank)[0]
        run.before(start, {**start, "event": "model", "model": 0, "shapes": [[1, 3], [1]]})
        del run.of("model", rank)[0]["weights"]


@pytest.mark.parametrize("held", [((0, 1), (2, 3)), ((0, 1, 2, 3), ()), ((0, 1, 2), (1, 2, 3))])
def test_parts_that_make_a_whole(follow, held):
    run = follow(CASE)
    took_model(run)
    shard(run, *held)
    judgement = run.judged()
    assert (judgement.verdict, judgement.findings) == ("PASS (exact)", ())


def test_the_rank_that_holds_a_wrong_number_is_named(follow):
    run = follow(CASE)
    shard(run, (0, 1), (2, 3))
    run.of("step", rank=1)[2]["weights"][3] += 1
    run.expect("FAIL (numerics)", "step 2, rank 1: bias becomes ")


def test_copies_that_differ(follow):
    run = follow(CASE)
    shard(run, (0, 1, 2), (1, 2, 3))
    run.of("step", rank=1)[2]["weights"][1] += 1
    assert run.judged().verdict == "DIVERGED"


def test_a_hole(follow):
    run = follow(CASE)
    took_model(run)
    shard(run, (0, 1), (3,))
    judgement = run.judged()
    assert (judgement.verdict, judgement.laws) == ("INCONCLUSIVE", ())
    assert judgement.headline.startswith("the ranks' shards leave out weight[2], ")


def test_a_rank_that_does_not_step_its_part(follow):
    run = follow(CASE)
    start = run.of("start")[0]["weights"]
    shard(run, (0, 1), (2, 3))
    run.remove(*run.of("step", rank=1))
    run.of("finished", rank=1)[0]["weights"][2:] = start[2:]
    run.expect("FAIL (numerics)", "rank 1 never stepped the task's model")


def test_copies_of_shards_that_never_come_back(follow):
    run = follow(CASE)
    start = run.of("start")[0]["weights"]
    shard(run, (0, 1), (2, 3))
    for rank in (0, 1):
        first, *others = run.of("step", rank)
        run.before(first, {**first, "event": "foreign_optimizer", "optimizer": "SGD", "shapes": [[1, 2]]})
        run.remove(first, *others)
        run.of("finished", rank)[0]["weights"] = list(start)
    run.expect("FAIL (numerics)", "the shards of ranks 0 and 1 never changed: the optimizer stepped other tensors, of ")


WITH_COPIES = Case("deepspeed", 2, 2, "bf16", "momentum")


@pytest.mark.parametrize(
    ("second", "apart"),
    [([1.0, 2.0, 3.0, 4.0], None), ([1.0, None, 3.0, 4.0], None), ([1.0, 2.5, 3.0, 4.0], "weight[1]: 2.0, 2.5")],
)
def test_copies_at_the_end(second, apart):
    """What a rank does not have whole tells nothing."""
    ends = [[1.0, 2.0, 3.0, 4.0], second]
    ranks = [SimpleNamespace(events=Events((read({"event": "finished", "copies": end}),))) for end in ends]
    found = copies_apart(WITH_COPIES, ranks)
    assert found == apart if apart is None else found.text.endswith(apart)
    assert found is None or found.advice == "exchange the stepped weights after the last step too"
