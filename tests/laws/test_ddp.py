"""The laws of DDP and of whatever else averages over ranks: traces that keep them, that break them, and permissions."""

from __future__ import annotations

from functools import partial

import pytest

from .building import TWO, a_run, backward, event, forward, step
from .building_ddp import ALL_REDUCE, FIRST, SECOND, WRAP, averaging, both, ddp, local, raised, ranks, started, stepped
from .findings import all_checked, broken_of, checked, laws_in, laws_of, tables, the, the_finding

broken = partial(broken_of, {"ddp"})

#: By law: runs that break only this law.
BREAKING = {
    "ddp/all-reduce-every-window": {
        "no collective": lambda: ranks(lambda rank: [forward(0), backward(), stepped(rank)]),
        "on one rank": lambda: ranks(
            lambda rank: (
                [forward(0), backward(), *[ALL_REDUCE] * (rank == 1), stepped(rank), raised()]
                if rank
                else [forward(0), backward(), stepped(rank)]
            )
        ),
        "before the last backward": lambda: ranks(
            lambda rank: [
                [WRAP, ddp(0), averaging(), event("no_sync_enter")],
                [ddp(syncs=False), local(gradients="some"), event("no_sync_exit"), stepped(rank)],
            ],
            accumulation=2,
        ),
        "flag never set again": lambda: ranks(
            lambda rank: [WRAP, ddp(0, syncs=False), local(), ddp(syncs=False), local(), stepped(rank)], accumulation=2
        ),
        "of a scalar": lambda: ranks(
            lambda rank: [forward(0), backward(), event("collective", elements=1, bytes=4), stepped(rank)]
        ),
        "of objects": lambda: ranks(
            lambda rank: [
                [forward(0), backward(), event("collective", op="allgather_", elements=90, bytes=90), stepped(rank)]
            ]
        ),
        "of weights, from one rank": lambda: ranks(
            lambda rank: [forward(0), backward(), stepped(rank), event("collective", op="broadcast_", of="parameters")]
        ),
        "to one rank only": lambda: ranks(
            lambda rank: [forward(0), backward(), event("collective", op="reduce_", of="gradients"), stepped(rank)]
        ),
        "in one of two windows": lambda: ranks(lambda rank: [FIRST, forward(1), backward(), stepped(rank)]),
        "on Horovod": lambda: ranks(lambda rank: [forward(0), backward(), stepped(rank)], backend="horovod"),
    },
    "ddp/all-reduce-once": {
        "by DDP": lambda: both(ddp(0), averaging(), ddp(micro_batch=1), averaging(gradients="some"), step()),
        "by hand": lambda: both(forward(0), backward(), ALL_REDUCE, forward(), backward(), ALL_REDUCE, step()),
    },
    "ddp/no-sync-around-forward": {
        "around the backward": lambda: both(ddp(0), averaging(syncs=False), ddp(), averaging(), step()),
        "around every forward": lambda: ranks(
            lambda rank: [WRAP, ddp(0, syncs=False), local(syncs=True), stepped(rank)],
        ),
        "in a backward that was cut off": lambda: both(ddp(0), averaging(syncs=False)[:2], raised()),
    },
    "ddp/forward-through-wrapper": {
        "past it": lambda: ranks(lambda rank: [WRAP, forward(0), backward(), stepped(rank)]),
        "past it, in the last micro-batch": lambda: ranks(
            lambda rank: [WRAP, ddp(0, syncs=False), local(), forward(), backward(gradients="some"), stepped(rank)]
        ),
    },
    "ddp/wrap-after-apex": {
        "before": lambda: both(WRAP, event("apex_initialize", models=1, optimizers=1), FIRST),
    },
}


def test_every_law_is_broken_by_a_trace():
    assert set(BREAKING) == laws_of("ddp") - laws_in("ddp_agreement", "ddp_collectives", "ddp_reach") - {
        "ddp/wait-before-step",
        "ddp/wait-before-use",
    }


SCALAR = event("collective", elements=1, bytes=4)

#: What breaks no law of the chapter.
ALLOWED = {
    "the textbook": lambda: both(
        [WRAP, started(0), event("no_sync_enter"), ddp(0, syncs=False), local(), event("no_sync_exit")],
        [ddp(), averaging(gradients="some"), step(), SECOND],
        accumulation=2,
    ),
    "without accumulation": lambda: both(WRAP, FIRST, SECOND),
    "the flag instead of no_sync": lambda: both(WRAP, ddp(0, syncs=False), local(), ddp(), averaging(), step()),
    "one rank alone": lambda: a_run([forward(0), backward(), step()]),
    "averaged by hand": lambda: both(forward(0), backward(), ALL_REDUCE, event("gradient_change", factor=0.5), step()),
    "averaged by hand, in two parts": lambda: ranks(
        lambda rank: [forward(0), backward(), *[event("collective", elements=1)] * 2, step(), FIRST]
    ),
    "reduced, scattered and gathered": lambda: both(
        [forward(0), backward(), event("collective", op="_reduce_scatter_base_")],
        [step(), event("collective", op="_allgather_base_", elements=1)],
    ),
    "averaged by a server": lambda: ranks(
        lambda rank: [
            [forward(0), backward(), event("collective", op="gather_")],
            [event("collective", op="scatter_", elements=(1 - rank) * 4, bytes=(1 - rank) * 16), step()],
        ]
    ),
    "sent from rank to rank": lambda: both(forward(0), backward(), step(gradients=[1.5, 2.0])),
    "frozen parameters": lambda: both(
        event("model", model=0, shapes=[[1, 1], [1]]),
        event("optimizer", parameters=[0, 1], trainable=[0]),
        [forward(0), backward(), event("collective", elements=1), step(gradients=[1.0, None])],
    ),
    "a scalar in every micro-batch": lambda: both(ddp(0, syncs=False), local(), SCALAR, ddp(), averaging(), step()),
    "no_sync around the forward of all but the last": lambda: both(
        ddp(0, syncs=False), local(syncs=True), ddp(), averaging(), step()
    ),
    "one backward over the window": lambda: both(
        WRAP, ddp(0, syncs=False), ddp(), averaging(forwards=[0, 1]), step(), accumulation=2
    ),
    "the inner module before the last": lambda: both(WRAP, forward(0), backward(), ddp(), averaging(), step()),
    "averaged by hand past the wrapper": lambda: both(WRAP, forward(0), backward(), ALL_REDUCE, step()),
    "reducer prepared by hand": lambda: both(WRAP, ddp(0, syncs=False), averaging(syncs=True), step()),
    "two losses of the only micro-batch": lambda: both(ddp(0), averaging(), averaging(), step()),
    "the comm hook's buffers": lambda: both(ddp(0), averaging(of=None), step()),
    "several optimizers": lambda: both(ddp(0), averaging(), step(optimizer=0), step(optimizer=1), SECOND),
    "wrapped after apex": lambda: both(event("apex_initialize", models=1, optimizers=1), WRAP, FIRST),
    "apex without DDP": lambda: both(event("apex_initialize", models=1, optimizers=1), forward(0), backward(), step()),
    "a window that is given up": lambda: ranks(lambda rank: [FIRST, ddp(1, syncs=False), local()]),
    "a rank that was cut off in its first window": lambda: both(ddp(0), backward()[0], raised()),
}


test_broken, test_allowed = tables(BREAKING, ALLOWED, "ddp")


def test_nothing_is_checked_on_one_rank():
    run = a_run([WRAP, event("start"), FIRST, SECOND])
    assert set(all_checked("ddp", run).values()) == {0}


def test_a_window_that_keeps_a_law_counts():
    run = ALLOWED["the textbook"]()
    names = ("all-reduce-every-window", "no-sync-around-forward", "forward-through-wrapper", "same-collectives")
    assert [checked(run, f"ddp/{name}") for name in names] == [4, 4, 4, 2]
    names = ("all-reduce-once", "identical-weights", "equal-start", "wrap-after-apex")
    assert [checked(run, f"ddp/{name}") for name in names] == [2, 2, 1, 0]


def test_what_cannot_be_told_is_not_checked():
    run = ALLOWED["sent from rank to rank"]()
    assert checked(run, "ddp/all-reduce-every-window") == 0


def test_a_missing_average_names_what_one_rank_alone_gets():
    run = BREAKING["ddp/all-reduce-every-window"]["to one rank only"]()
    told = the_finding(run, "ddp/all-reduce-every-window").broken
    assert "gave the result to only one rank, which did not pass it on" in told.observed


def test_what_one_rank_gets_and_passes_on_is_shared():
    passed_on = [event("collective", op=op, of="gradients") for op in ("reduce_", "broadcast_")]
    run = ranks(lambda rank: [forward(0), backward(), *passed_on, stepped(rank)])
    assert "ddp/all-reduce-every-window" not in broken(run)


def test_after_the_last_step_nobody_needs_what_its_owner_has():
    reduced, passed_on = event("collective", op="reduce_", of="gradients"), event("collective", op="broadcast_")

    def steps(*last):
        return ranks(
            lambda rank: [
                *[
                    forward(0),
                    backward(),
                    reduced,
                    stepped(rank),
                    event("collective", op="broadcast_", of="parameters"),
                ],
                *[forward(1), backward(), *last, stepped(rank)],
            ]
        )

    assert "ddp/all-reduce-every-window" not in broken(steps(reduced))
    assert "ddp/all-reduce-every-window" in broken(steps())
    assert "ddp/all-reduce-every-window" in broken(steps(passed_on))


def test_a_hook_that_sends_nothing_is_blamed():
    run = ranks(lambda rank: [WRAP, ddp(0), backward(syncs=True), stepped(rank)])
    told = the_finding(run, "ddp/all-reduce-every-window").broken
    assert "so its communication hook sent nothing" in told.observed


def test_a_missing_average_names_the_last_one_and_the_no_sync():
    run = BREAKING["ddp/all-reduce-every-window"]["before the last backward"]()
    told = the_finding(run, "ddp/all-reduce-every-window").broken
    assert "backward (train.py:8) ran inside `no_sync()`, entered at train.py:6" in told.observed
    assert "the last average was allreduce (gradients, 8 B) (train.py:4)" in told.observed
    assert told.effect == "In window 0, rank 0 steps with gradient (1), rank 1 with (2) of weight[0]."
    assert [event.event for event in told.shows] == ["collective", "no_sync_enter", "backward_begin", "step"]


def test_a_no_sync_may_begin_before_the_window():
    run = ranks(
        lambda rank: [
            [WRAP, event("no_sync_enter"), ddp(0, syncs=False), local(), event("no_sync_exit")],
            stepped(rank),
        ]
    )
    told = the_finding(run, "ddp/all-reduce-every-window").broken
    assert "ran inside `no_sync()`, entered at" in told.observed
    assert (told.advice, told.edit) == ("", "")


@pytest.mark.parametrize("is_shared", [True, False])
def test_short_windows_are_named_if_ranks_average_all_others(is_shared):
    run = ranks(
        lambda rank: [
            [*[forward(0), backward()] * 2, *([ALL_REDUCE, step()] if is_shared else [stepped(rank)])],
            [forward(1), backward(), stepped(rank)],
        ],
        **{**TWO, "orders": [[[[0], [1], [0]], [[2], [3], [2]]]]},
    )
    findings = the(run, "ddp/all-reduce-every-window").findings
    assert ["short windows" in one.broken.fault for one in findings] == ([True] if is_shared else [False, False])


@pytest.mark.parametrize("is_by_hand", [True, False])
def test_the_flag_is_named_only_where_no_region_sets_it(is_by_hand):
    region = [] if is_by_hand else [event("no_sync_enter")]
    run = ranks(lambda rank: [WRAP, *region, ddp(0, syncs=False), local(syncs=True), stepped(rank)])
    told = the_finding(run, "ddp/no-sync-around-forward").broken
    assert [part.count("require_backward_grad_sync") for part in (told.fault, told.advice, told.edit)] == [
        is_by_hand
    ] * 3
    assert ("`no_sync()`" in told.observed) != is_by_hand


RECEIVE = event("receive", peer=1)


def run(*exchanged, **fields):
    """Two ranks that exchange these after their backward, and step with these fields."""
    return both(forward(0), backward(), *exchanged, step(**fields))


def place(*exchanged):
    """The numbers of these events in `run`."""
    events = run(*exchanged).ranks[0].events
    return [one.seq for one in events if one.event in ("collective", "receive")]


@pytest.mark.parametrize("exchanged", [[ALL_REDUCE], [RECEIVE], [ALL_REDUCE, ALL_REDUCE]])
@pytest.mark.parametrize(
    ("field", "law"), [("unfinished", "ddp/wait-before-step"), ("unfinished_elsewhere", "ddp/wait-before-use")]
)
def test_nobody_waits(exchanged, field, law):
    """For what writes where the step reads, or for the buffer that is copied there."""
    seen = run(*exchanged, **{field: place(*exchanged)})
    assert broken_of({"ddp"}, seen) == {law}
    assert "no wait for" in the_finding(seen, law).broken.observed


def test_one_of_two_is_waited_for():
    """What the step uses has to be waited for all; of copies, the other one may be for a log."""
    first, _ = place(ALL_REDUCE, ALL_REDUCE)
    assert broken_of({"ddp"}, run(ALL_REDUCE, ALL_REDUCE, unfinished=[first])) == {"ddp/wait-before-step"}
    assert broken_of({"ddp"}, run(ALL_REDUCE, ALL_REDUCE, unfinished_elsewhere=[first])) == set()


@pytest.mark.parametrize("law", ["ddp/wait-before-step", "ddp/wait-before-use"])
def test_all_are_waited_for(law):
    seen = run(ALL_REDUCE)
    assert checked(seen, law) == 2
    assert broken_of({"ddp"}, seen) == set()


def test_a_log_says_nothing():
    """The loss is reduced for a log, which is waited for later; the gradients travel in other ways, or not at all."""
    log = event("collective", elements=1, bytes=4)
    assert broken_of({"ddp"}, run(log, unfinished_elsewhere=place(log))) == set()


def test_what_else_may_have_brought_the_average():
    """Such as compressed gradients, which no law recognises."""
    compressed = event("collective", op="allgather_", elements=9, bytes=18, reduce=None)
    first, _ = place(ALL_REDUCE, compressed)
    assert broken_of({"ddp"}, run(ALL_REDUCE, compressed, unfinished_elsewhere=[first])) == set()
