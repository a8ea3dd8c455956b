"""A trace comes apart into windows, whatever happens between them."""

from __future__ import annotations

import pytest

from .building import a_run, backward, event, forward, hold, step


def test_windows_begin_with_their_first_forward():
    run = a_run(
        [event("zero_grad"), forward(0), backward(), step(), event("zero_grad"), forward(1), backward(), step()]
    )
    first, second = run.windows
    assert [e.event for e in first.events] == ["forward", "backward_begin", "backward_end", "step", "zero_grad"]
    assert [e.event for e in second.events][:1] == ["forward"]
    assert [e.event for e in first.gap_before] == [e.event for e in second.gap_before] == ["zero_grad"]


def test_a_window_without_a_successor_has_ended_only_if_the_rank_finished():
    events = [forward(0), backward(), step(), forward(1), backward()]
    assert [window.ended for window in a_run(events).windows] == [True, True]
    raised = a_run([*events, event("raised")])
    assert [window.ended for window in raised.windows] == [True, False]


def test_together_stops_where_one_rank_stopped():
    whole = [forward(0), backward(), step(), forward(1), backward(), step()]
    run = a_run(whole, [*whole[:5], event("raised")], backend="ddp")
    assert {number: len(here.windows) for number, here in run.together.items()} == {0: 2}


def test_plan_repeats_its_windows_every_epoch():
    run = a_run([], accumulation=2, epochs=[0, 0], orders=[[[[0], [1], [2]]]])
    assert [run.plan.micro_batches(0, window) for window in range(5)] == [
        ((0,), (1,)),
        ((2,),),
        ((0,), (1,)),
        ((2,),),
        (),
    ]


def test_a_rank_has_no_window_for_which_it_has_no_data():
    """What it does for the others is in its events, and in none of its windows."""
    first, second = [forward(0), backward(), step()], [forward(1), backward(), step()]
    answer = [forward(1), event("collective")]
    plan = {"accumulation": 1, "orders": [[[[0], [1]], [[2]]]], "backend": "ddp"}
    plan["model"] = {"kind": "linear", "features": 1, "bias": True, "weights": [[2.0, 1.0]] * 2}
    run = a_run([first, second], [first, answer], **plan)
    assert [run.plan.with_data(window) for window in range(3)] == [2, 1, 0]
    assert [len(rank.windows) for rank in run.ranks] == [2, 1]
    assert [event.event for event in run.ranks[1].windows[0].events][-1] == "step"
    assert [event.event for event in run.ranks[1].events][-2:] == ["collective", "finished"]
    assert list(run.together) == [0]


@pytest.mark.parametrize(("held", "is_stepped"), [([0], True), ([1], False), ([], True)])
def test_whether_the_weights_of_a_rank_are_stepped_by_hand(held, is_stepped):
    """Judges a rank by its own weights; the first weight changes. A rank without any has nothing to step."""
    shown = [forward(0, weights=[1.0, 1.0]), backward(), event("finished", weights=[2.0, 1.0])]
    assert a_run([event("shards", held=held), *shown], backend="fsdp2").ranks[0].steps_by_hand == is_stepped


@pytest.mark.parametrize(
    ("owned", "is_left_out"),
    [([[0], [1], []], True), ([[0, 1], [], []], False), ([[0, 1], [0, 1], []], False), ([[0], [0, 1], []], False)],
)
@pytest.mark.parametrize("shown", [[], [hold(0, 0, 1)]], ids=["without an optimizer", "with one of all parameters"])
def test_whether_others_own_all_that_is_stepped(owned, is_left_out, shown):
    """Each its own; a rank that steps for all, or for itself, leaves nothing for the last rank."""
    ranks = [
        [hold(0, *own), forward(0), backward(), step(parameters=own)] if own else [*shown, forward(0)] for own in owned
    ]
    run = a_run(*ranks, backend="zero-redundancy")
    assert [rank.owns_nothing for rank in run.ranks] == [False, is_left_out and not owned[1], is_left_out]
