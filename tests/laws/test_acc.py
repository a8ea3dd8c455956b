"""The laws of accumulation: traces that keep them, that break them, and permissions."""

from __future__ import annotations

from functools import partial

import pytest

from .building import TWO, a_run, backward, clear, event, forward, hold, micro_batch, right, step, windows
from .findings import broken_of, checked, found, laws_in, tables

broken = partial(broken_of, {"acc"})

HELD, BOTH = hold(0, 0, 1), [hold(0, 0), hold(1, 1)]
PART = clear(by="hand", optimizer=None, parameters=[1])
BY_HAND = clear(by="hand", optimizer=None)
ASIDE = forward(extra=True, forward=9, rows=[2, 3])
SOME = {"gradients": "some"}
FP16 = {"precision": "fp16", "scaler": {"init_scale": 1024.0}}


def alone(*events, **changes):
    """A run of one rank."""
    return a_run([*events], **changes)


def scaled(window=None, scale=1024.0):
    return [forward(window), event("loss_scaled", scale=scale), backward(scaled=scale)]


def after_an_evaluation(held):
    """Before the first window, and between two; the gradients of the step before have been cleared."""
    aside = [ASIDE, backward(forwards=[9])]
    first, second = (micro_batch(n, gradients=held) for n in range(2))
    return [alone(HELD, aside, first, step()), alone(HELD, micro_batch(0), step(), clear(), aside, second, step())]


def same_samples_again(rows):
    first = [forward(0, rows=[0, 1], forward=0), backward(forwards=[0])]
    return alone(first, clear(), forward(rows=rows, forward=1), backward(forwards=[1]), step())


def clipped_by_hand(threshold):
    """Sums that are kept elsewhere are right in one window, and hidden by a clip in the next."""
    first = [event("start"), micro_batch(0), clear(), micro_batch(), step(gradients=right([0, 1]))]
    second = [micro_batch(1), clear(), micro_batch(), step(gradients=[0.5, 0.5])]
    return alone(first, clear(), second, **TWO, clip={"kind": "norm", "threshold": threshold})


#: By law: runs that break only this law.
BREAKING = {
    "acc/one-backward-per-loss": {
        "twice": lambda: alone(forward(0, rows=[0, 1]), backward(root=7), backward(root=7, forwards=[0]), step()),
        "again in a sum": lambda: alone(
            [forward(0, rows=[0, 1]), backward(root=7), event("backward_begin", root=8, contains=[7])],
            [event("backward_end", forwards=[0]), step()],
        ),
        "never": lambda: alone(forward(0, rows=[0]), forward(rows=[1]), backward(), step(), **TWO),
    },
    "acc/one-forward-per-loss": {
        "once more": lambda: alone(
            [forward(0), backward(), step(), clear()],
            [forward(1, extra=True), forward(1), backward(), step()],
        ),
        "after its backward": lambda: alone(forward(0), backward(), forward(extra=True), step()),
    },
    "acc/step-after-all-backwards": {
        "for each micro-batch": lambda: alone(micro_batch(0), step(), clear(), micro_batch(), step(), clear(), **TWO),
        "before the backward": lambda: alone(
            [forward(0), step(gradients=[None, None]), clear(), backward()],
            [forward(1), step(), clear(), backward(gradients="none")],
        ),
        "the same gradients twice": lambda: alone(micro_batch(0), step(), step(), clear()),
        "never": lambda: alone(micro_batch(0), event("foreign_optimizer", optimizer="SGD", shapes=[[1, 4]]), clear()),
        "and cleared after it": lambda: alone(
            HELD, [[micro_batch(n, **(SOME if n else {})), step(), clear(), micro_batch()] for n in range(2)], **TWO
        ),
    },
    "acc/one-scale-per-window": {
        "it changes": lambda: alone(
            scaled(0), event("update", scale_after=512.0), scaled(scale=512.0), step(scale=512.0), **TWO
        ),
        "it changes by hand": lambda: alone(micro_batch(0, scaled=8.0), micro_batch(scaled=4.0), step(), **TWO),
    },
    "acc/cleared-between-windows": {
        "never": lambda: alone(HELD, micro_batch(0), step(), micro_batch(1, **SOME), step()),
        "only a part": lambda: alone(HELD, micro_batch(0), step(), PART, micro_batch(1, **SOME), step()),
        "after a window that is dropped": lambda: alone(
            [micro_batch(0), micro_batch(**SOME), step(), clear(), micro_batch(1)],
            [micro_batch(2, **SOME), step()],
            accumulation=2,
            epochs=[0, 0],
            orders=[[[[0], [1], [2]]]],
        ),
        "an evaluation before the first window": lambda: after_an_evaluation("some")[0],
        "an evaluation between two": lambda: after_an_evaluation("some")[1],
    },
    "acc/cleared-once": {
        "twice": lambda: alone(
            [clear(), clear(), micro_batch(0), step(), clear()],
            [clear(by="model", optimizer=None), micro_batch(1), step()],
        ),
    },
    "acc/not-cleared-inside": {
        "for each micro-batch": lambda: alone(clear(), micro_batch(0), clear(), micro_batch(), step(), **TWO),
        # As where `zero_grad` works only in the last micro-batch of each window, before its backward.
        "and not before": lambda: alone(
            [HELD, micro_batch(0), clear(), micro_batch(), step()],
            [micro_batch(1, **SOME), clear(), micro_batch(), step()],
            **TWO,
        ),
        "before the step": lambda: alone(micro_batch(0), clear(), step(gradients=[None, None])),
        "before other samples": lambda: same_samples_again([2, 3]),
        "all, so the step has zeros": lambda: alone(
            micro_batch(0), BY_HAND, event("collective"), step(gradients=[0.0, 0.0])
        ),
        "a part": lambda: alone(micro_batch(0), PART, step(gradients=[3.0, 0.0])),
        "a sum that a clip does not hide": lambda: clipped_by_hand(0.01),
    },
}

#: What breaks no law of the chapter.
ALLOWED = {
    "the textbook": lambda: alone(windows([], [])),
    "a penalty with its own root": lambda: alone(forward(0), backward(root=9), backward(root=8, forwards=[0]), step()),
    "a loss of only weights": lambda: alone(forward(0), backward(root=9), backward(root=8, forwards=[]), step()),
    "a backward for its own norm, cleared": lambda: alone(
        forward(0), backward(root=9), clear(), backward(root=9, forwards=[0]), step()
    ),
    "a look before training": lambda: alone(forward(0, extra=True), forward(), backward(forwards=[1]), step()),
    "rows that are no samples, and no backward": lambda: alone(
        forward(0), forward(rows=[None]), backward(forwards=[0]), step()
    ),
    "two forwards, one backward": lambda: alone(forward(0), forward(rows=[2, 3]), backward(forwards=[0, 1]), step()),
    "torch.autograd.grad": lambda: alone(forward(0, rows=[0]), forward(rows=[1]), step()),
    "a backward missing, and cut off": lambda: alone(
        forward(0, rows=[0]), forward(rows=[1]), backward(), event("raised"), **TWO
    ),
    "two losses": lambda: alone(forward(0), backward(), forward(), backward(forwards=[1]), step()),
    "torch.autograd.grad of a second forward": lambda: alone(
        forward(0), backward(), forward(), event("autograd_grad", forwards=[1]), step()
    ),
    "a backward that raised": lambda: alone(
        [forward(0), backward(), forward(extra=True), event("backward_begin", backward=1)],
        [forward(), backward(), step()],
    ),
    "rows that are no samples": lambda: alone(forward(0), backward(), forward(rows=[None, 0], extra=True), step()),
    "rows that cannot be told": lambda: alone(forward(0), backward(), forward(rows=[], extra=True), step()),
    "an evaluation": lambda: alone(forward(0), backward(), forward(extra=True, training=False), step()),
    "a forward more, and cut off": lambda: alone(forward(0), backward(), forward(extra=True), event("raised")),
    "two optimizers": lambda: alone(*BOTH, micro_batch(0), step(), step(optimizer=1)),
    "two optimizers, each after its backward": lambda: alone(
        *BOTH, micro_batch(0), step(), backward(root=9, forwards=[0]), step(optimizer=1)
    ),
    "a step without gradients": lambda: alone(micro_batch(0), step(gradients=[None, None]), step()),
    "a skipped step": lambda: alone(micro_batch(0), event("skip")),
    "a backward of something else": lambda: alone(micro_batch(0), step(), backward(root=9, forwards=[])),
    "cut off before the step": lambda: alone(micro_batch(0), event("raised")),
    "a short window that is dropped": lambda: alone(
        micro_batch(0), micro_batch(), step(), clear(), micro_batch(1), **{**TWO, "orders": [[[[0], [1], [2]]]]}
    ),
    "the trainer's own scaler, which leaves out steps": lambda: alone(
        micro_batch(0), clear(), micro_batch(1), step(), **FP16
    ),
    "a scale for each scaler": lambda: alone(
        forward(0), [event("loss_scaled", scale=2.0**n, scaler=n) for n in (1, 2)], backward(), step()
    ),
    "another scale in another window": lambda: alone(scaled(0), step(), clear(), scaled(1, scale=512.0), step()),
    "cleared at the end": lambda: alone(HELD, micro_batch(0), step(), clear(), micro_batch(1), step()),
    "cleared after the forward": lambda: alone(HELD, micro_batch(0), step(), forward(1), clear(), backward(), step()),
    "cleared to zero": lambda: alone(
        HELD, micro_batch(0), step(), clear(set_to_none=False), micro_batch(1, gradients="zero"), step()
    ),
    "cleared by hand": lambda: alone(HELD, micro_batch(0), step(), BY_HAND, micro_batch(1, gradients="none"), step()),
    "cleared by two optimizers": lambda: alone(
        [HELD, micro_batch(0), step(), clear(parameters=[0]), clear(parameters=[1], optimizer=1)],
        [micro_batch(1), step()],
    ),
    "gradients unknown": lambda: alone(HELD, micro_batch(0), step(), clear(), micro_batch(1, gradients=None), step()),
    "a penalty": lambda: alone(
        HELD, micro_batch(0), step(), clear(), micro_batch(1), backward(root=9, gradients="some"), step()
    ),
    "gradients without an optimizer": lambda: alone(
        hold(0, 0), micro_batch(0), step(), clear(parameters=[0]), micro_batch(1, **SOME), step()
    ),
    # The only backward is that of another model.
    "gradients of autograd.grad that add up to zero": lambda: alone(
        [forward(0), event("autograd_grad", forwards=[0]), step(), clear()],
        [forward(1), event("autograd_grad", forwards=[1]), BY_HAND, step(), backward(root=9, forwards=[])],
    ),
    "gradients put into place before a backward": lambda: alone(
        [HELD, forward(0), event("autograd_grad", forwards=[0]), step()],
        [forward(1), event("autograd_grad", forwards=[1]), event("gradient_change")],
        [backward(root=9, gradients="some", forwards=[]), step()],
    ),
    "an evaluation before the first window": lambda: after_an_evaluation("none")[0],
    "an evaluation between two": lambda: after_an_evaluation("none")[1],
    "the same samples backward again": lambda: same_samples_again([0, 1]),
    "Horovod's optimizer, which has its own law": lambda: alone(
        hold(0, 0, 1, horovod=True, backward_passes_per_step=1), micro_batch(0), clear(), step(), backend="horovod"
    ),
    # Such as in Megatron's main gradients, which are wrong here for another reason.
    "all cleared, and kept elsewhere": lambda: alone(
        micro_batch(0), BY_HAND, event("collective"), step(gradients=[3.0, 0.0])
    ),
    "sums kept elsewhere": lambda: alone(
        event("start"), micro_batch(0), clear(), micro_batch(), step(gradients=right([0, 1])), **TWO
    ),
    "sums kept elsewhere that a clip may hide": lambda: clipped_by_hand(1000.0),
}

test_broken, test_allowed = tables(BREAKING, ALLOWED, "acc")


def test_every_law_is_broken_by_a_trace():
    assert set(BREAKING) == laws_in("acc", "acc_clearing") - {"acc/averaged-once"}


@pytest.mark.parametrize(
    ("law", "run", "count"),
    [
        ("acc/one-backward-per-loss", "the textbook", 2),
        ("acc/one-forward-per-loss", "the textbook", 2),
        ("acc/cleared-between-windows", "the textbook", 1),
        ("acc/cleared-once", "the textbook", 1),
        ("acc/not-cleared-inside", "the textbook", 2),
        ("acc/one-scale-per-window", "another scale in another window", 0),
    ],
)
def test_windows_that_keep_a_law_count(law, run, count):
    assert checked(ALLOWED[run](), law) == count


def test_one_scale_counts():
    assert checked(alone(scaled(0), scaled(), step(scale=1024.0), **TWO), "acc/one-scale-per-window") == 1


@pytest.mark.parametrize(
    ("law", "name", "told"),
    [
        ("acc/step-after-all-backwards", "never", "has none of the model's parameters"),
        ("acc/one-scale-per-window", "it changes", "scale 1024 → 512"),
        ("acc/cleared-between-windows", "only a part", "cleared only other parameters"),
        ("acc/cleared-between-windows", "an evaluation before the first window", "of no micro-batch"),
        ("acc/cleared-between-windows", "an evaluation between two", "of no micro-batch"),
    ],
)
def test_what_is_told(law, name, told):
    assert told in found(BREAKING[law][name](), law).broken.observed


@pytest.mark.parametrize(("name", "edit"), [("twice", "remove it"), ("again in a sum", ""), ("never", "")])
def test_a_second_backward_is_one_call_too_many(name, edit):
    law = "acc/one-backward-per-loss"
    assert found(BREAKING[law][name](), law).broken.edit == edit


def test_the_event_that_breaks_a_law_is_named():
    def event_of(law, name):
        return found(BREAKING[law][name](), law).broken.event

    assert event_of("acc/one-backward-per-loss", "twice").seq == 3
    assert event_of("acc/one-backward-per-loss", "never").event == "forward"
    assert event_of("acc/one-forward-per-loss", "once more").forward == 1


@pytest.mark.parametrize(("law", "name"), [("acc/cleared-between-windows", "never"), ("acc/cleared-once", "twice")])
def test_the_second_window_is_named(law, name):
    assert found(BREAKING[law][name](), law).window == 1


def test_what_an_evaluation_adds_to_is_the_rest_of_a_window():
    aside = [ASIDE, backward(forwards=[9], gradients="some")]
    run = alone(HELD, micro_batch(0), step(), aside, micro_batch(1, **SOME), step())
    assert "the gradients of window 0, which step" in found(run, "acc/cleared-between-windows").broken.observed


def test_a_part_cleared_inside_a_window_leaves_the_others():
    first = [micro_batch(0), micro_batch(**SOME), step()]
    then = [micro_batch(1, **SOME), PART, micro_batch(**SOME), step()]
    assert broken(alone(HELD, first, then, **TWO)) >= {"acc/cleared-between-windows"}
