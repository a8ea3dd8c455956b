"""In what order ranks read the samples of an epoch."""

import pytest

NAME = "ddp-w2-acc2-fp32-epoch-schedule"


@pytest.fixture
def apart(follow):
    """Rank 1 reads two windows of the second epoch the other way round, and what it reads of them is rank 0's."""
    run = follow(NAME)
    forwards = [[event for event in run.of("forward", rank) if event["window"] in (2, 3)] for rank in (0, 1)]
    for event, other in zip(forwards[1], [*forwards[0][2:], *forwards[0][:2]], strict=True):
        event["rows"] = other["rows"]
    for event in run.of("step"):
        event["gradients"][0] += 1.0
    return run


def test_ranks_that_go_through_an_epoch_in_different_orders(apart):
    assert apart.judged().headline.startswith("ranks 0 and 1 go through epoch 1 in different orders: ")


def test_more_steps_than_windows_show_no_order(apart):
    """What is read for a step that nobody asked for moves all windows after it."""
    for rank in (0, 1):
        step = apart.of("step", rank)[-1]
        apart.after(step, {**step, "step": 6, "window": 6})
    assert apart.judged().headline.startswith("7 optimizer steps instead of 6")
