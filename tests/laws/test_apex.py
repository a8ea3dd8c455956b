"""The laws of apex, on traces written by hand: PyPI does not have apex, and its amp needs a GPU, so its mutants in
fixtures/mutants run only where both are.
"""

from __future__ import annotations

from functools import partial

from conformance.laws.law import CHAPTERS

from .building import a_run, backward, event, forward, step
from .building_hvd import SYNCHRONIZE, WITHIN_STEP, both, inside, made, raised, ranks
from .findings import all_checked, broken_of, laws_of, tables, the_finding


def scaled(*inside_of_it, delay=False, window=None, optimizers=1):
    """A micro-batch whose backward runs under `scale_loss`."""
    fields = {"delay_unscale": delay, "optimizers": optimizers}
    return [
        forward(window),
        event("scale_loss_enter", **fields),
        backward(scaled=1024.0),
        *inside_of_it,
        event("scale_loss_exit", **fields),
    ]


def two_optimizers(*events):
    return ranks(lambda rank: [made(optimizer=0, parameters=[0]), made(optimizer=1, parameters=[1]), *events])


checked = partial(all_checked, "apex")

STEP = inside(step(synchronizes=False))
OTHER = event("synchronize", optimizer=1)

#: By law: runs that break only this law.
BREAKING = {
    "apex/synchronize-in-scale-loss": {
        "after it": lambda: both(scaled(window=0), SYNCHRONIZE, STEP),
        "in the step": lambda: both(scaled(window=0), WITHIN_STEP, step(synchronizes=True)),
        "in an earlier pass": lambda: both(scaled(SYNCHRONIZE, delay=True, window=0), scaled(), step(), accumulation=2),
    },
    "apex/delay-unscale": {
        "in the first of two": lambda: ranks(
            lambda rank: [made(2), scaled(window=0), scaled(SYNCHRONIZE), STEP], accumulation=2
        ),
        "under DDP": lambda: a_run(
            *[[scaled(window=0), scaled(), step()]] * 2,
            backend="ddp",
            accumulation=2,
        ),
    },
    "apex/one-optimizer": {
        "one of two": lambda: two_optimizers(scaled(SYNCHRONIZE, optimizers=2, window=0), STEP, step(optimizer=1)),
    },
    "apex/step-in-skip-synchronize": {
        "plain step": lambda: both(scaled(SYNCHRONIZE, window=0), WITHIN_STEP, step(synchronizes=True)),
    },
}


def test_every_law_is_broken_by_a_trace():
    assert set(BREAKING) == laws_of("apex")


#: What breaks none of these laws.
ALLOWED = {
    "the textbook": lambda: ranks(
        lambda rank: [
            [made(2), scaled(delay=True, window=0), scaled(SYNCHRONIZE), STEP],
            [event("zero_grad"), scaled(delay=True, window=1), scaled(SYNCHRONIZE), STEP],
        ],
        accumulation=2,
    ),
    "DDP without accumulation": lambda: a_run(*[[scaled(window=0), step()]] * 2, backend="ddp"),
    "one rank that accumulates": lambda: a_run([scaled(window=0), scaled(), step()], accumulation=2),
    "two losses of one micro-batch": lambda: ranks(
        lambda rank: [
            made(2),
            [forward(0), event("scale_loss_enter"), backward(), event("scale_loss_exit")],
            [event("scale_loss_enter"), backward(root=1), SYNCHRONIZE, event("scale_loss_exit"), STEP],
        ]
    ),
    "several optimizers, all synchronized": lambda: two_optimizers(
        scaled(SYNCHRONIZE, OTHER, optimizers=2, window=0), STEP, inside(step(optimizer=1))
    ),
    "several optimizers, one named": lambda: two_optimizers(scaled(SYNCHRONIZE, window=0), STEP),
    "several optimizers without Horovod": lambda: a_run(
        *[[scaled(optimizers=2, window=0), step(), step(optimizer=1)]] * 2, backend="ddp"
    ),
    "a pass that was cut off": lambda: both(scaled(window=0)[:3], raised()),
}


test_broken, test_allowed = tables(BREAKING, ALLOWED, "apex", "hvd")


def test_apex_takes_the_scale_off():
    """A scaled loss is followed by a plain step: GradScaler's laws have nothing to say of it."""
    run = a_run([scaled(delay=True, window=0), scaled(), event("clip"), step()], accumulation=2)
    assert broken_of(CHAPTERS, run) == set()


def test_while_apex_delays_it_the_scale_is_on():
    run = a_run([scaled(delay=True, window=0), scaled(delay=True), step()], accumulation=2)
    assert broken_of(CHAPTERS, run) == {"amp/step-through-scaler"}


def test_a_window_that_keeps_a_law_counts():
    assert checked(ALLOWED["the textbook"]()) == dict.fromkeys(BREAKING, 4)


def test_nothing_is_checked_without_apex():
    assert set(checked(both(forward(0), backward(), SYNCHRONIZE, STEP)).values()) == {0}


def test_what_came_too_late_is_shown():
    run = BREAKING["apex/synchronize-in-scale-loss"]["after it"]()
    finding = the_finding(run, "apex/synchronize-in-scale-loss")
    assert "leave scale_loss (train.py:6) came before synchronize (train.py:7)" in finding.broken.observed
    kinds = ["scale_loss_enter", "backward_begin", "scale_loss_exit", "synchronize"]
    assert [event.event for event in finding.broken.shows] == kinds
