"""The laws of DDP and of whatever else averages over ranks: traces that keep them, that break them, and permissions."""

from __future__ import annotations

import pytest

from conformance.laws.checking import check
from conformance.laws.law import laws
from conformance.laws.run import Run

from .building import a_run, backward, event, forward, step


def ddp(window=None, syncs=True, **fields):
    """A forward through DDP."""
    return forward(window, wrapper="DistributedDataParallel", syncs=syncs, **fields)


def averaging(syncs=True, of="gradients", **fields):
    """A backward in which DDP averages."""
    begin, end = backward(syncs=syncs, **fields)
    return [begin, event("collective", during="backward", of=of), end]


def local(syncs=False, **fields):
    """A backward in which it does not."""
    return backward(syncs=syncs, **fields)


def stepped(rank, **fields):
    """A step along the gradient of this rank alone."""
    return step(gradients=[1.0 + rank, 0.0], weights=[0.5 - rank / 2, 0.5], **fields)


WRAP = event("wrap")
ALL_REDUCE = event("collective", of="gradients")


def ranks(build, count=2, backend="ddp", **changes):
    """A run whose ranks do what ``build`` gives for each."""
    return a_run(*(build(rank) for rank in range(count)), backend=backend, **changes)


def both(*events, **changes):
    """A run of two ranks that do the same."""
    return ranks(lambda rank: [*events], **changes)


def started(rank, apart=True):
    return event("start", weights=[float(rank), 0.0] if apart else [0.0, 0.0])


def raised(kind="ValueError"):
    return event("raised", type=kind, message="", traceback="")


def hung(run):
    """The same run, whose ranks neither finished nor raised."""
    ends = ("finished", "raised")
    return Run.read(run.plan.spec, [[e.fields for e in rank.events if e.kind not in ends] for rank in run.ranks])


def broken(run):
    """The laws of this chapter that a run breaks."""
    return {one.law.id for one in check(run) if one.findings and one.law.chapter == "ddp"}


def the(run, law):
    return next(one for one in check(run) if one.law.id == law)


def the_finding(run, law):
    [finding] = the(run, law).findings
    return finding


ONE, TWO = [ddp(0), averaging(), step()], [ddp(1), averaging(), step()]

#: Of each law: runs that break it, and it alone.
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
        "in one of two windows": lambda: ranks(lambda rank: [ONE, forward(1), backward(), stepped(rank)]),
        "on Horovod": lambda: ranks(lambda rank: [forward(0), backward(), stepped(rank)], backend="horovod"),
    },
    "ddp/all-reduce-once": {
        "by DDP": lambda: both(ddp(0), averaging(), ddp(micro_batch=1), averaging(gradients="some"), step()),
        "by hand": lambda: both(forward(0), backward(), ALL_REDUCE, forward(), backward(), ALL_REDUCE, step()),
    },
    "ddp/no-sync-around-forward": {
        "around the backward": lambda: both(ddp(0), averaging(syncs=False), ddp(), averaging(), step()),
        "around the forward": lambda: both(ddp(0, syncs=False), local(syncs=True), ddp(), averaging(), step()),
        "around every forward": lambda: ranks(
            lambda rank: [WRAP, ddp(0, syncs=False), local(syncs=True), stepped(rank)],
        ),
        "in a backward that was cut off": lambda: both(ddp(0), backward(syncs=False)[0], raised()),
    },
    "ddp/forward-through-wrapper": {
        "past it": lambda: ranks(lambda rank: [WRAP, forward(0), backward(), stepped(rank)]),
        "past it, in the last micro-batch": lambda: ranks(
            lambda rank: [WRAP, ddp(0, syncs=False), local(), forward(), backward(gradients="some"), stepped(rank)]
        ),
    },
    "ddp/equal-start": {
        "apart": lambda: ranks(lambda rank: [started(rank), ONE]),
        "after a broadcast of less": lambda: ranks(
            lambda rank: [event("collective", op="broadcast_", of="parameters", elements=1), started(rank), ONE]
        ),
        "on Horovod, after a broadcast": lambda: ranks(
            lambda rank: [event("collective", op="broadcast", via="horovod", of="parameters"), started(rank), ONE],
            backend="horovod",
        ),
    },
    "ddp/same-collectives": {
        "another operation": lambda: ranks(
            lambda rank: [event("collective", op="broadcast_" if rank else "allreduce_"), ONE]
        ),
        "another size": lambda: ranks(lambda rank: [event("collective", elements=rank + 1, bytes=4 * rank + 4), ONE]),
        "another reduction": lambda: ranks(lambda rank: [event("collective", reduce=("sum", "avg")[rank]), ONE]),
        "one more": lambda: ranks(lambda rank: [ONE, *[event("collective", elements=1)] * (rank == 0)]),
        "one left before": lambda: ranks(
            lambda rank: [ONE, raised("SystemExit")] if rank else [ONE, ddp(1), averaging()[:2], raised("RuntimeError")]
        ),
        "in one of several groups": lambda: ranks(
            lambda rank: [event("collective", group=[0, 2], op=f"op{rank}")] * (rank != 1) + [event("collective")] * 0,
            count=3,
        ),
    },
    "ddp/identical-weights": {
        "after the first step": lambda: ranks(lambda rank: [ddp(0), averaging(), step(weights=[0.5, float(rank)])]),
        "after the second": lambda: ranks(
            lambda rank: [ONE, ddp(1), averaging(), step(weights=[float(rank), 0.0], lr=1.0 + rank)]
        ),
        "nan on one rank": lambda: ranks(
            lambda rank: [ddp(0), averaging(), step(weights=["nan" if rank else 0.0, 0.0])]
        ),
    },
    "ddp/wrap-after-apex": {
        "before": lambda: both(WRAP, event("apex_initialize", models=1, optimizers=1), ONE),
    },
}


@pytest.mark.parametrize(
    ("law", "run"),
    [pytest.param(law, run, id=f"{law}: {name}") for law, runs in BREAKING.items() for name, run in runs.items()],
)
def test_broken(law, run):
    assert broken(run()) == {law}


def test_every_law_is_broken_by_a_trace():
    assert set(BREAKING) == {law.id for law in laws() if law.chapter == "ddp"}


SCALAR = event("collective", elements=1, bytes=4)

#: What breaks none of these laws.
ALLOWED = {
    "the textbook": lambda: both(
        [WRAP, started(0), event("no_sync_enter"), ddp(0, syncs=False), local(), event("no_sync_exit")],
        [ddp(), averaging(gradients="some"), step(), TWO],
        accumulation=2,
    ),
    "without accumulation": lambda: both(WRAP, ONE, TWO),
    "the flag in place of no_sync": lambda: both(WRAP, ddp(0, syncs=False), local(), ddp(), averaging(), step()),
    "one rank alone": lambda: a_run([forward(0), backward(), step()]),
    "averaged by hand": lambda: both(forward(0), backward(), ALL_REDUCE, event("gradient_change", factor=0.5), step()),
    "averaged by hand, in two parts": lambda: ranks(
        lambda rank: [forward(0), backward(), *[event("collective", elements=1)] * 2, step(), ONE]
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
    "weights averaged after the step": lambda: ranks(
        lambda rank: [forward(0), backward(), stepped(rank), event("collective", of="parameters"), TWO]
    ),
    "sent from rank to rank": lambda: both(forward(0), backward(), step(gradients=[1.5, 2.0])),
    "frozen parameters": lambda: both(
        event("model", model=0, shapes=[[1, 1], [1]]),
        event("optimizer", parameters=[0, 1], trainable=[0]),
        [forward(0), backward(), event("collective", elements=1), step(gradients=[1.0, None])],
    ),
    "a scalar every window": lambda: both(SCALAR, ddp(0), averaging(), step(), SCALAR, ddp(1), averaging(), step()),
    "a scalar in every micro-batch": lambda: both(ddp(0, syncs=False), local(), SCALAR, ddp(), averaging(), step()),
    "evaluation between steps": lambda: both(ONE, event("collective", op="allgather_", elements=9, bytes=36), TWO),
    "one backward over the window": lambda: both(
        WRAP, ddp(0, syncs=False), ddp(), averaging(forwards=[0, 1]), step(), accumulation=2
    ),
    "the inner module before the last": lambda: both(WRAP, forward(0), backward(), ddp(), averaging(), step()),
    "averaged by hand past the wrapper": lambda: both(WRAP, forward(0), backward(), ALL_REDUCE, step()),
    "reducer prepared by hand": lambda: both(WRAP, ddp(0, syncs=False), averaging(syncs=True), step()),
    "two losses of the only micro-batch": lambda: both(ddp(0), averaging(), averaging(), step()),
    "the comm hook's buffers": lambda: both(ddp(0), averaging(of=None), step()),
    "an overflow that all skip": lambda: ranks(
        lambda rank: [ddp(0), averaging(), event("skip", gradients=["inf", float(rank)])]
    ),
    "several optimizers": lambda: both(ddp(0), averaging(), step(optimizer=0), step(optimizer=1), TWO),
    "wrapped after apex": lambda: both(event("apex_initialize", models=1, optimizers=1), WRAP, ONE),
    "apex without DDP": lambda: both(event("apex_initialize", models=1, optimizers=1), forward(0), backward(), step()),
    "shares of an all-to-all": lambda: ranks(
        lambda rank: [event("collective", op="alltoall_base_", elements=rank), ONE]
    ),
    "unequal shares gathered": lambda: ranks(
        lambda rank: [event("collective", op="allgather_", elements=rank + 1, bytes=4 * rank + 4), ONE]
    ),
    "a window that is given up": lambda: ranks(lambda rank: [ONE, ddp(1, syncs=False), local()]),
    "a group of its own": lambda: ranks(lambda rank: [event("collective", group=[rank], op=f"op{rank}"), ONE]),
    "Horovod's own order": lambda: ranks(
        lambda rank: [
            [forward(0), backward()],
            [event("collective", via="horovod", elements=size, of="gradients") for size in ((1, 2), (2, 1))[rank]],
            step(),
        ],
        backend="horovod",
    ),
    "an error on one rank": lambda: ranks(
        lambda rank: [ONE, raised()] if rank else [ONE, ddp(1), averaging()[:2], raised("RuntimeError")]
    ),
    "a rank that was cut off in its first window": lambda: both(ddp(0), backward()[0], raised()),
    "weights that are not listed": lambda: ranks(
        lambda rank: [event("start", weights=None), ddp(0), averaging(), step(weights=None, gradients=None)]
    ),
    # Each of these is for another law.
    "one rank skips": lambda: ranks(
        lambda rank: [ddp(0), averaging(), event("skip") if rank else step(weights=[0.0, 0.0])]
    ),
    "scales that differ": lambda: ranks(
        lambda rank: [ddp(0), averaging(), step(scale=2.0**rank, weights=[float(rank), 0.0])]
    ),
    "a schedule on one rank": lambda: ranks(
        lambda rank: [ONE, *[event("schedule")] * rank, ddp(1), averaging(), step(weights=[float(rank), 0.0], lr=rank)]
    ),
    "a step in every micro-batch": lambda: ranks(
        lambda rank: [ddp(0, syncs=False), local(), stepped(rank), ddp(), averaging(), stepped(rank)]
    ),
    "no broadcast on Horovod": lambda: ranks(
        lambda rank: [started(rank), forward(0), backward(), ALL_REDUCE, stepped(rank)], backend="horovod"
    ),
}


@pytest.mark.parametrize("run", [pytest.param(run, id=name) for name, run in ALLOWED.items()])
def test_allowed(run):
    assert broken(run()) == set()


def test_nothing_is_checked_on_one_rank():
    run = a_run([WRAP, event("start"), ONE, TWO])
    assert {one.checked for one in check(run) if one.law.chapter == "ddp"} == {0}


def test_a_window_that_keeps_a_law_counts():
    run = ALLOWED["the textbook"]()
    names = ("all-reduce-every-window", "no-sync-around-forward", "forward-through-wrapper", "same-collectives")
    assert [the(run, f"ddp/{name}").checked for name in names] == [4, 4, 4, 2]
    names = ("all-reduce-once", "identical-weights", "equal-start", "wrap-after-apex")
    assert [the(run, f"ddp/{name}").checked for name in names] == [2, 2, 1, 0]


def test_what_cannot_be_told_is_not_checked():
    run = ALLOWED["sent from rank to rank"]()
    assert the(run, "ddp/all-reduce-every-window").checked == 0
    assert the(ALLOWED["weights averaged after the step"](), "ddp/identical-weights").checked == 1
    assert the(ALLOWED["evaluation between steps"](), "ddp/identical-weights").checked == 1
    assert the(ALLOWED["a scalar every window"](), "ddp/identical-weights").checked == 2


def test_a_missing_average_names_the_last_one_and_the_no_sync():
    run = BREAKING["ddp/all-reduce-every-window"]["before the last backward"]()
    told = the_finding(run, "ddp/all-reduce-every-window").broken
    assert "backward (train.py:8) ran inside of `no_sync()`, entered at train.py:6" in told.contradiction
    assert "the last before was allreduce (gradients, 8 B) (train.py:4)" in told.contradiction
    assert told.effect == "In window 0 the ranks part: rank 0 along (1, 0) and rank 1 along (2, 0)."
    assert [event.kind for event in told.shows] == ["collective", "no_sync_enter", "backward_begin", "step"]


def test_ranks_that_part_are_told_once():
    run = ranks(lambda rank: [[ddp(k), averaging(), step(weights=[float(rank), k], lr=1.0 + rank)] for k in range(4)])
    finding = the_finding(run, "ddp/identical-weights")
    assert (finding.count, finding.window, finding.ranks) == (1, 0, (1,))
    assert "the learning rate is 1 on rank 0 and 2 on rank 1" in finding.broken.contradiction


def test_a_hang_is_explained_by_the_rank_that_did_not_come():
    run = hung(ranks(lambda rank: [ONE, event("zero_grad")] if rank else [ONE, ddp(1), averaging()[:2]]))
    assert broken(run) == {"ddp/same-collectives"}
    finding = the_finding(run, "ddp/same-collectives")
    assert finding.window == 1
    assert finding.broken.contradiction == (
        "Every rank must issue the same collectives in the same order, because a collective needs all of its 2 ranks. "
        "However, rank 0 entered allreduce (gradients, 8 B) (train.py:8), and rank 1 never came to it; the last that "
        "it did was zero grad (train.py:6): a contradiction."
    )
    assert [(event.rank, event.kind) for event in finding.broken.shows] == [(1, "zero_grad"), (0, "collective")]


def test_a_hang_in_which_all_ranks_wait_is_not_explained():
    assert broken(hung(both(ONE, ddp(1), averaging()[:2]))) == set()


def test_a_window_left_out_by_one_rank_explains_its_hang():
    run = ranks(
        lambda rank: (
            [ONE, ddp(1), averaging(), stepped(rank)]
            if rank
            else [ddp(0), local(syncs=True), stepped(2), ddp(1), averaging(), stepped(rank)]
        )
    )
    assert broken(run) == {"ddp/all-reduce-every-window"}
