"""A trace comes apart into windows, whatever happens between them."""

from __future__ import annotations

from .building import a_run, backward, event, forward, step


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
    run = a_run([], accumulation=2, epochs=2, micro_batches=[[[0], [1], [2]]])
    assert [run.plan.micro_batches(0, window) for window in range(5)] == [
        ((0,), (1,)),
        ((2,),),
        ((0,), (1,)),
        ((2,),),
        (),
    ]
