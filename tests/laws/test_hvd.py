"""The laws of Horovod: traces that keep them, traces that break them, and what may be done near them."""

from __future__ import annotations

import pytest

from conformance.laws.checking import check
from conformance.laws.law import laws

from .building import a_run, backward, event, forward, step

SYNCHRONIZE = event("synchronize")
WITHIN_STEP = event("synchronize", in_step=True)
REDUCED = event("collective", op="allreduce", via="horovod", of="gradients", reduce="sum", during="synchronize")
BROADCAST = event("collective", op="broadcast", via="horovod", of="parameters", phase="construction")
OPTIMIZER = event("optimizer", horovod=True, backward_passes_per_step=1)


def made(passes=1, **fields):
    return event("optimizer", horovod=True, backward_passes_per_step=passes, **fields)


def one(window=None, **fields):
    """A micro-batch; Horovod averages in its backward."""
    begin, end = backward(**fields)
    return [forward(window), begin, REDUCED, end]


def inside(*events):
    """The step, or what leads to it, inside of `skip_synchronize`."""
    return [event("skip_synchronize_enter"), *events, event("skip_synchronize_exit")]


def plain():
    """A step that synchronizes by itself."""
    return [WITHIN_STEP, step(synchronizes=True)]


def explicit():
    return [SYNCHRONIZE, inside(step(synchronizes=False))]


def ranks(build, **changes):
    return a_run(build(0), build(1), backend="horovod", **changes)


def both(*events, **changes):
    """A run of two ranks that do the same, with one optimizer of Horovod's."""
    return ranks(lambda rank: [OPTIMIZER, *events], **changes)


def accumulating(passes, *events, **changes):
    """The same, in windows of two micro-batches."""
    return ranks(lambda rank: [made(passes), *events], accumulation=2, **changes)


def raised():
    return event("raised", type="AssertionError", message="", traceback="")


def started(rank):
    return event("start", weights=[float(rank), 0.0])


def broken(run):
    """The laws of this chapter that a run breaks."""
    return {each.law.id for each in check(run) if each.findings and each.law.chapter == "hvd"}


def checked(run, name):
    return next(each.checked for each in check(run) if each.law.id == f"hvd/{name}")


def the_finding(run, law):
    [finding] = next(each.findings for each in check(run) if each.law.id == law)
    return finding


UNSCALE, SCALED_STEP = event("unscale"), [event("scaler_step"), step(scale=1024.0)]

#: Of each law: runs that break it, and it alone.
BREAKING = {
    "hvd/synchronize-at-most-once": {
        "twice": lambda: both(one(0), SYNCHRONIZE, REDUCED, SYNCHRONIZE, REDUCED, inside(step())),
        "in every micro-batch": lambda: both(one(0), SYNCHRONIZE, one(gradients="some"), explicit(), accumulation=2),
        "and the run ends there": lambda: both(one(0), SYNCHRONIZE, SYNCHRONIZE, raised()),
    },
    "hvd/step-in-skip-synchronize": {
        "plain step": lambda: both(one(0), SYNCHRONIZE, REDUCED, WITHIN_STEP, REDUCED, step(synchronizes=True)),
        "in the second window": lambda: both(one(0), explicit(), one(1), SYNCHRONIZE, plain()),
        "by the scaler": lambda: both(one(0), SYNCHRONIZE, UNSCALE, event("scaler_step"), plain()),
    },
    "hvd/synchronize-before-clip": {
        "explicit": lambda: both(one(0), event("clip"), explicit()),
        "plain step": lambda: both(one(0), event("clip"), plain()),
        "by value": lambda: both(one(0), {**event("clip", norm=None), "kind": "value"}, explicit()),
        "after all micro-batches": lambda: accumulating(2, one(0), one(gradients="some"), event("clip"), explicit()),
    },
    "hvd/synchronize-before-unscale": {
        "explicit": lambda: both(one(0), UNSCALE, SYNCHRONIZE, inside(*SCALED_STEP)),
        "plain step": lambda: both(one(0), event("scaler_step"), event("unscale", implicit=True), plain()),
        "never, for it is skipped": lambda: both(
            one(0), event("scaler_step"), event("unscale", implicit=True), event("skip")
        ),
    },
    "hvd/backward-passes-per-step": {
        "too few": lambda: accumulating(1, one(0), one(gradients="some")[:2], raised()),
        "too many": lambda: accumulating(3, [[one(k), one(gradients="some"), explicit()] for k in range(2)]),
        "too many, plain steps": lambda: accumulating(3, [[one(k), one(gradients="some"), plain()] for k in range(2)]),
        "two losses of each micro-batch": lambda: both(one(0), backward(root=1, gradients="some"), raised()),
    },
    "hvd/broadcast-before-first-step": {
        "nothing": lambda: ranks(lambda rank: [OPTIMIZER, started(rank), one(0), plain()]),
        "nothing but state": lambda: ranks(
            lambda rank: [OPTIMIZER, event("collective", op="broadcast", via="horovod"), started(rank), one(0), plain()]
        ),
        "momentum of one rank": lambda: ranks(lambda rank: [made(state=rank == 0), BROADCAST, one(0), plain()]),
    },
    "hvd/not-cleared-before-synchronize": {
        "explicit": lambda: both(one(0), event("zero_grad"), explicit()),
        "plain step": lambda: both(one(0), event("zero_grad", by="model", optimizer=None), plain()),
        "and Horovod refuses": lambda: both(one(0), event("zero_grad"), raised()),
        "in its second window": lambda: both(
            one(0), explicit(), event("zero_grad"), one(1), event("zero_grad"), plain()
        ),
    },
}


@pytest.mark.parametrize(
    ("law", "run"),
    [pytest.param(law, run, id=f"{law}: {name}") for law, runs in BREAKING.items() for name, run in runs.items()],
)
def test_broken(law, run):
    assert broken(run()) == {law}


def test_every_law_is_broken_by_a_trace():
    assert set(BREAKING) == {law.id for law in laws() if law.chapter == "hvd"}


ADASUM = event("collective", op="allreduce", via="horovod", reduce="adasum", of="gradients")

#: What breaks none of these laws.
ALLOWED = {
    "the textbook": lambda: ranks(
        lambda rank: [
            [made(2), BROADCAST, event("start")],
            [
                event("zero_grad"),
                one(0),
                one(gradients="some"),
                SYNCHRONIZE,
                UNSCALE,
                event("clip"),
                inside(*SCALED_STEP),
            ],
            [
                event("zero_grad"),
                one(1),
                one(gradients="some"),
                SYNCHRONIZE,
                UNSCALE,
                event("clip"),
                inside(*SCALED_STEP),
            ],
        ],
        accumulation=2,
    ),
    "plain step": lambda: both(event("zero_grad"), one(0), plain(), event("zero_grad"), one(1), plain()),
    "synchronize first, and nothing else": lambda: both(one(0), explicit(), one(1), explicit()),
    "cleared after the step": lambda: both(one(0), explicit(), event("zero_grad"), one(1), plain(), event("zero_grad")),
    "a step that is skipped": lambda: both(
        [one(0), SYNCHRONIZE, UNSCALE, inside(event("scaler_step"), event("skip")), event("zero_grad")],
        [one(1), SYNCHRONIZE, UNSCALE, inside(*SCALED_STEP)],
    ),
    "the loss scaled after synchronize": lambda: both(one(0), SYNCHRONIZE, event("loss_scaled"), inside(step())),
    "a short last window, synchronized": lambda: accumulating(
        2, one(0), one(gradients="some"), explicit(), one(1), explicit()
    ),
    "a short last window, plain step": lambda: accumulating(2, one(0), one(gradients="some"), plain(), one(1), plain()),
    "nothing but short windows": lambda: accumulating(2, one(0), plain(), micro_batches=[[[0, 1]]]),
    "two losses of each micro-batch, counted": lambda: accumulating(
        4, [[one(0), backward(root=1), one(), backward(root=3), explicit()]]
    ),
    "a loss without the model": lambda: both(one(0), backward(forwards=[]), explicit()),
    "a window in one forward": lambda: accumulating(1, one(0), explicit(), one(1), explicit()),
    "ranks that are equal without a broadcast": lambda: both(event("start"), one(0), plain()),
    "more than needed is broadcast": lambda: both(BROADCAST, BROADCAST, event("start"), one(0), plain()),
    "state that all ranks have": lambda: ranks(lambda rank: [made(state=True), one(0), plain()]),
    "state that is broadcast": lambda: ranks(
        lambda rank: [made(state=rank == 0), event("collective", op="broadcast", via="horovod"), one(0), plain()]
    ),
    "several optimizers": lambda: ranks(
        lambda rank: [
            [made(optimizer=0, parameters=[0]), made(optimizer=1, parameters=[1])],
            [one(0), SYNCHRONIZE, event("synchronize", optimizer=1)],
            [event("unscale", parameters=[0]), event("unscale", optimizer=1)],
            [inside(step(parameters=[0])), inside(step(optimizer=1, parameters=[1]))],
        ]
    ),
    "clipping what is another optimizer's": lambda: ranks(
        lambda rank: [made(parameters=[0]), one(0), event("clip", parameters=[1]), explicit()]
    ),
    "clearing what is another optimizer's": lambda: ranks(
        lambda rank: [made(parameters=[0]), one(0), event("zero_grad", parameters=[1], optimizer=1), explicit()]
    ),
    "another optimizer's scaler": lambda: both(one(0), event("unscale", optimizer=1), explicit()),
    "a window that is given up": lambda: both(one(0), event("zero_grad"), one(1), explicit()),
    "an optimizer that is not Horovod's": lambda: ranks(
        lambda rank: [event("optimizer"), one(0), event("clip"), UNSCALE, *SCALED_STEP]
    ),
    "Adasum": lambda: both(forward(0), backward(), ADASUM, event("clip"), step()),
    "one rank alone": lambda: a_run([OPTIMIZER, one(0), event("clip"), explicit()], backend="horovod"),
    "a rank that was cut off": lambda: both(one(0)[:2], raised()),
    # That is ddp/equal-start.
    "a broadcast that was not enough": lambda: ranks(
        lambda rank: [OPTIMIZER, BROADCAST, started(rank), one(0), plain()]
    ),
    # That is clip/once-per-window and its like.
    "clipped in every micro-batch": lambda: accumulating(
        2, one(0), event("clip"), one(gradients="some"), SYNCHRONIZE, event("clip"), inside(step())
    ),
    # That is acc/not-cleared-inside.
    "cleared between micro-batches": lambda: accumulating(2, one(0), event("zero_grad"), one(), explicit()),
}


@pytest.mark.parametrize("run", [pytest.param(run, id=name) for name, run in ALLOWED.items()])
def test_allowed(run):
    assert broken(run()) == set()


def test_a_window_that_keeps_a_law_counts():
    run = ALLOWED["the textbook"]()
    every_window = ("synchronize-at-most-once", "step-in-skip-synchronize", "synchronize-before-clip")
    assert [checked(run, name) for name in every_window] == [4, 4, 4]
    assert [checked(run, name) for name in ("synchronize-before-unscale", "backward-passes-per-step")] == [4, 4]
    assert [checked(run, name) for name in ("not-cleared-before-synchronize", "broadcast-before-first-step")] == [4, 1]


@pytest.mark.parametrize("name", ["an optimizer that is not Horovod's", "Adasum", "one rank alone"])
def test_nothing_is_checked_without_horovods_optimizer(name):
    assert {each.checked for each in check(ALLOWED[name]()) if each.law.chapter == "hvd"} == {0}


def test_a_sum_that_is_summed_again_is_told_with_its_factor():
    finding = the_finding(BREAKING["hvd/step-in-skip-synchronize"]["plain step"](), "hvd/step-in-skip-synchronize")
    assert finding.ranks == (0, 1)
    assert finding.broken.effect == "Summed over 2 ranks twice, the gradients are 2 times too large."
    assert [event.kind for event in finding.broken.shows] == ["synchronize", "collective", "synchronize", "collective"]


def test_an_overflow_that_one_rank_finds_is_told():
    def build(rank):
        found = event("unscale", implicit=True, found_inf=rank == 1)
        return [OPTIMIZER, one(0), event("scaler_step"), found, event("skip") if rank else plain(), raised()]

    told = the_finding(ranks(build), "hvd/synchronize-before-unscale").broken
    assert told.effect == "In window 0 rank 1 found an overflow and rank 0 none: their steps part."
    assert "scaler step (train.py:6) came before synchronize within step (train.py:8)" in told.contradiction


def test_norms_that_differ_are_told():
    run = ranks(lambda rank: [OPTIMIZER, one(0), event("clip", norm=2.0 + rank), explicit()])
    told = the_finding(run, "hvd/synchronize-before-clip").broken
    assert told.effect == "Rank 0 saw the norm 2 and rank 1 saw the norm 3: each clips by a factor of its own."
