"""The laws of Horovod: traces that keep them, traces that break them, and what may be done near them."""

from __future__ import annotations

import pytest

from .building import a_run, backward, event, forward, step
from .building_ddp import started
from .building_hvd import (
    BROADCAST,
    OPTIMIZER,
    REDUCED,
    SYNCHRONIZE,
    WITHIN_STEP,
    accumulating,
    both,
    explicit,
    inside,
    made,
    one,
    plain,
    raised,
    ranks,
)
from .findings import all_checked, laws_of, tables, the_finding

UNSCALE, SCALED_STEP = event("unscale"), [event("scaler_step"), step(scale=1024.0)]

#: By law: runs that break only this law.
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


def test_every_law_is_broken_by_a_trace():
    assert set(BREAKING) == laws_of("hvd")


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
    "nothing but short windows": lambda: accumulating(2, one(0), plain(), orders=[[[[0, 1]]]]),
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
            [event("unscale"), event("unscale", optimizer=1)],
            [inside(step(parameters=[0])), inside(step(optimizer=1, parameters=[1]))],
        ]
    ),
    "clipping another optimizer's parameters": lambda: ranks(
        lambda rank: [made(parameters=[0]), one(0), event("clip", parameters=[1]), explicit()]
    ),
    "clearing another optimizer's parameters": lambda: ranks(
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


test_broken, test_allowed = tables(BREAKING, ALLOWED, "hvd")


def test_a_window_that_keeps_a_law_counts():
    run = ALLOWED["the textbook"]()
    counts = all_checked("hvd", run)
    every_window = ("synchronize-at-most-once", "step-in-skip-synchronize", "synchronize-before-clip")
    assert [counts[f"hvd/{name}"] for name in every_window] == [4, 4, 4]
    assert counts["hvd/synchronize-before-unscale"] == counts["hvd/backward-passes-per-step"] == 4
    assert counts["hvd/not-cleared-before-synchronize"] == 4
    assert counts["hvd/broadcast-before-first-step"] == 1


@pytest.mark.parametrize("name", ["an optimizer that is not Horovod's", "Adasum", "one rank alone"])
def test_nothing_is_checked_without_horovods_optimizer(name):
    assert set(all_checked("hvd", ALLOWED[name]()).values()) == {0}


def test_a_sum_that_is_summed_again_is_told_with_its_factor():
    finding = the_finding(BREAKING["hvd/step-in-skip-synchronize"]["plain step"](), "hvd/step-in-skip-synchronize")
    assert finding.ranks == (0, 1)
    assert finding.broken.effect == "The sum over 2 ranks is taken twice: gradients are 2x too large."
    assert [event.event for event in finding.broken.shows] == ["synchronize", "collective", "synchronize", "collective"]


def test_an_overflow_that_one_rank_finds_is_told():
    def build(rank):
        found = event("unscale", implicit=True, found_inf=rank == 1)
        return [OPTIMIZER, one(0), event("scaler_step"), found, event("skip") if rank else plain(), raised()]

    told = the_finding(ranks(build), "hvd/synchronize-before-unscale").broken
    assert told.effect == "In window 0, rank 1 found an overflow and rank 0 did not: their steps differ."
    assert "scaler step (train.py:6) came before synchronize within step (train.py:8)" in told.observed


def test_norms_that_differ_are_told():
    run = ranks(lambda rank: [OPTIMIZER, one(0), event("clip", norm=2.0 + rank), explicit()])
    told = the_finding(run, "hvd/synchronize-before-clip").broken
    assert told.effect == "Rank 0 saw the norm 2 and rank 1 saw the norm 3: each clips by its own factor."
