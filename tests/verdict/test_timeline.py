"""A timeline shows one window of all ranks, marks what broke a law, and joins collectives that met."""

from __future__ import annotations

from conformance.verdict.timeline import timeline

from ..laws.building import a_run, backward, event, forward, step


def a_rank(*more):
    return [
        event("zero_grad"), forward(0), backward(), event("collective"), step(),
        event("zero_grad"), forward(1), event("collective"), *more, backward(), event("collective"), step(),
    ]  # fmt: skip


def test_a_window_with_what_led_to_it():
    shown = timeline(a_run(a_rank()), 1)
    assert [moment.label for moment in shown.moments][:3] == ["zero grad", "forward", "allreduce (8 B)"]
    assert shown.moments[0].time == 0
    assert not shown.joins


def test_collectives_meet_by_their_count_even_where_a_window_has_more_of_them_on_one_rank():
    run = a_run(a_rank(), a_rank(event("collective", bytes=4)), backend="ddp")
    shown = timeline(run, 1)
    met = [[shown.moments[at] for at in join.moments] for join in shown.joins]
    both = [(0, "allreduce (8 B)"), (1, "allreduce (8 B)")]
    assert [[(moment.rank, moment.label) for moment in group] for group in met] == [both, both]


def test_before_training():
    run = a_run([event("collective", of="parameters"), forward(0)])
    assert [moment.label for moment in timeline(run, None).moments] == ["allreduce (parameters, 8 B)"]


def test_long_windows_are_cut_and_say_so():
    shown = timeline(a_run([forward(0), [backward() for _ in range(100)]]), 0)
    assert len(shown.moments) == 80
    assert shown.cut == 1 + 200 - 80
