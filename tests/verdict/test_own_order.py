"""In what order the ranks read the samples: the task's, or the trainer's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from conformance.cases.case import Case
from conformance.verdict.orders import epoch_ways, not_once
from conformance.workloads.layout import micro_batches

NAME = "ddp-w2-acc2-fp32-own-order"
CASE = Case("ddp", 2, 2, "fp32", "own-order")
ALL = tuple(range(24))
REVERSED = tuple(reversed(ALL))


def dealt(*epochs):
    """The order of each epoch, dealt out to two ranks sample by sample, in micro-batches of two."""
    return tuple(tuple(micro_batches(epoch[rank::2], 2) for rank in (0, 1)) for epoch in epochs)


def test_any_order_in_which_all_are_read_once_passes(follow):
    run = follow(NAME)
    assert run.judged().verdict == "PASS (exact)"
    for rank in run.ranks:
        epoch = [event for event in rank if event["event"] == "forward"][:6]
        rows = [event["rows"] for event in epoch]
        for event, other in zip(epoch, [*rows[2:], *rows[:2]], strict=True):
            event["rows"] = other
    judgement = run.expect("FAIL (numerics)")
    assert judgement.difference.step == 0
    assert all(guard.passed for guard in judgement.guards)


@pytest.mark.parametrize("rows", [[None, None], []])
def test_samples_that_forwards_do_not_show_prove_nothing(follow, rows):
    run = follow(NAME)
    for event in run.of("forward", 1):
        event["rows"] = rows
    run.expect("INCONCLUSIVE", advice="pass the batch's inputs to the model unchanged")


def test_an_epoch_that_is_never_read(follow):
    follow(NAME, windows=3).expect("FAIL (numerics)", headline="epoch 1 is never read, and this case asks for 2 epochs")


def test_windows_that_are_lost_in_each_epoch_are_not_taken_from_the_next(follow):
    """Two of three windows: the rest is as long as an epoch and a third."""
    run = follow(NAME)
    run.remove(*(event for rank in run.ranks for event in rank if event["window"] in (2, 5)))
    told = "train on each sample once in an epoch"
    run.expect("FAIL (numerics)", headline="no rank reads 8 samples of epoch 0", advice=told)


def test_windows_are_lost_in_the_epoch_that_lacks_them(follow):
    """Half a window of the first epoch; what comes later is not taken for it."""
    run = follow(NAME)
    run.remove(*(event for rank in run.ranks for event in rank if (event["window"], event["micro_batch"]) == (1, 0)))
    judgement = run.judged()
    assert judgement.headline == "no rank reads 4 samples of epoch 0"
    assert judgement.reason.advice == "train on each sample once in an epoch"


def test_steps_that_are_too_many_come_before_what_they_read(follow):
    run = follow(NAME)
    for events in run.ranks:
        last = [event for event in events if event["window"] == 3]
        at = events.index(last[-1]) + 1
        events[at:at] = [dict(event) for event in last]
    run.expect("FAIL (numerics)", headline="7 optimizer steps instead of 6, one per accumulation window")


@pytest.mark.parametrize(
    ("orders", "text", "advice"),
    [
        (
            dealt(ALL, (*ALL[:-1], 0)),
            "several ranks read the same 1 sample of epoch 1, and no rank reads 1",
            "shuffle ",
        ),
        (
            dealt(ALL, (*ALL[:-2], 0, 1)),
            "rank 0 reads 1 sample of epoch 1 more than once, and no rank reads 2",
            "draw ",
        ),
        (dealt(ALL, REVERSED[:-4]), "no rank reads 4 samples of epoch 1", "train on each sample "),
        (dealt(ALL[4:], REVERSED), "no rank reads 4 samples of epoch 0", "train on each sample "),
        # The last ones may be missing in either.
        (dealt(ALL, ALL[:-4]), "an epoch misses 4 samples", "train on each sample "),
        # The first ones of an epoch may come twice in it, or again at the end of the epoch before.
        (dealt(ALL, (*REVERSED[:8], *REVERSED)), "an epoch reads 8 samples too many", "read each sample "),
        (dealt(ALL), "epoch 1 is never read, and this case asks for 2 epochs", ""),
        (dealt(ALL, ALL, ALL), "training continues after 2 complete epochs", ""),
        (dealt([at // 2 for at in range(48)], ALL), "each rank reads all samples of epoch 0", "split the samples "),
    ],
)
def test_what_is_not_read_once_in_an_epoch(orders, text, advice):
    found = not_once(replace(CASE, orders=orders))
    assert found.text == text
    assert found.advice.startswith(advice)
    assert bool(found.advice) == bool(advice)


def test_each_sample_once_in_each_epoch():
    assert not_once(replace(CASE, orders=dealt(ALL, REVERSED))) is None


@pytest.mark.parametrize(
    ("orders", "found"),
    [
        (dealt(REVERSED, REVERSED), ("epoch_order=same",)),
        (dealt(REVERSED, ALL), ()),
        (dealt(ALL, ALL), ()),
        (dealt(REVERSED), ()),
    ],
)
def test_who_shuffles_once_is_told_so(orders, found):
    """Nobody who does not shuffle."""
    assert epoch_ways(replace(CASE, orders=orders)) == found


def test_both_lives_of_a_resumed_run_are_read(follow):
    """Forwards are counted from 0 in each."""
    run = follow(f"{NAME}-resumed-at-4")
    assert run.judged().verdict == "PASS (exact)"
    for events in run.ranks:
        first, last = (
            [event for event in events if event["event"] == "forward" and event["window"] == window]
            for window in (3, 5)
        )
        for event, other in zip(last, first, strict=True):
            event["rows"] = other["rows"]
    judgement = run.judged()
    assert judgement.headline == "rank 0 reads 4 samples of epoch 1 more than once, and no rank reads 8"
    assert judgement.reason.advice == "draw without replacement, and read all samples in each epoch"


EPOCHS = "ddp-w2-acc2-fp32-epoch-schedule"


@pytest.fixture
def apart(follow):
    """Rank 1 reads two windows of the second epoch in reverse, with rank 0's samples."""
    run = follow(EPOCHS)
    forwards = [[event for event in run.of("forward", rank) if event["window"] in (2, 3)] for rank in (0, 1)]
    for event, other in zip(forwards[1], [*forwards[0][2:], *forwards[0][:2]], strict=True):
        event["rows"] = other["rows"]
    for event in run.of("step"):
        event["gradients"][0] += 1.0
    return run


def test_ranks_that_go_through_an_epoch_in_different_orders(apart):
    assert apart.judged().headline.startswith("ranks 0 and 1 read epoch 1 in different orders: ")


def test_more_steps_than_windows_show_no_order(apart):
    """What is read for a step that nobody asked for moves all windows after it."""
    for rank in (0, 1):
        step = apart.of("step", rank)[-1]
        apart.after(step, {**step, "step": 6, "window": 6})
    assert apart.judged().headline.startswith("7 optimizer steps instead of 6")
