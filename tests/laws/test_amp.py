"""The laws of mixed precision: traces that keep them, traces that break them, and what may be done near them."""

from __future__ import annotations

import pytest

from conformance.laws.checking import check
from conformance.laws.law import laws

from .building import a_run, backward, event, forward, step

S = 1024.0
CLIP = {"kind": "norm", "threshold": 1.0}


def scaled(window, **fields):
    """The forward and the backward on a scaled loss that open a window, or go on in it."""
    return [forward(window), event("loss_scaled", scale=S), backward(scaled=S, **fields)]


def more(**fields):
    """A further micro-batch of the same window."""
    return scaled(None, gradients="some", **fields)


def unscale(**fields):
    return event("unscale", **fields)


def taken(**fields):
    """A step that the scaler takes, with its update."""
    return [event("scaler_step"), step(scale=S, **fields), event("update")]


def skipped(after=S / 2, **fields):
    """A step that the scaler skips, with its update."""
    return [event("scaler_step"), event("skip", **fields), event("update", scale_after=after)]


def last():
    """A window in which all is well, and the end."""
    return [event("zero_grad"), scaled(1), unscale(), taken()]


def by_hand(**fields):
    """The ranks sum their gradients without DDP."""
    return event("collective", of="gradients", **fields)


def held(optimizer, *parameters):
    return event("optimizer", optimizer=optimizer, parameters=list(parameters), trainable=list(parameters))


def two_ranks(first, second=None, **changes):
    return a_run(first, first if second is None else second, backend="ddp", **changes)


def broken(run):
    """The laws of mixed precision that a run breaks."""
    return {one.law.id for one in check(run) if one.findings and one.law.chapter == "amp"}


def checked(run, law):
    return next(one.checked for one in check(run) if one.law.id == law)


def the_finding(run, law):
    [finding] = next(one.findings for one in check(run) if one.law.id == law)
    return finding


BARE = step(parameters=[0, 1])
CLIPPED = event("clip", norm=4096.0)
FP16 = {"precision": "fp16", "scaler": {}}
OVERFLOWED = {"gradients": ["inf", 1.0]}

#: Of each law: runs that break it, and it alone.
BREAKING = {
    "amp/all-ranks-skip": {
        "one steps": lambda: two_ranks(
            [scaled(0), by_hand(), unscale(found_inf=True), skipped(), event("finished", weights=[1.0, 0.5])],
            [scaled(0), by_hand(), unscale(found_inf=True), taken()],
        ),
        "one does not try": lambda: two_ranks(
            [scaled(0), by_hand(), scaled(1), by_hand(), unscale(), taken()],
            [scaled(0), by_hand(), step(**OVERFLOWED), scaled(1), by_hand(), unscale(), taken()],
        ),
    },
    "amp/back-off": {
        "stays": lambda: a_run([scaled(0), skipped(after=S), last()]),
        "grows": lambda: a_run([scaled(0), skipped(after=2 * S), last()]),
        "becomes infinite": lambda: a_run([scaled(0), skipped(after="inf"), last()]),
    },
    "amp/autocast-around-forward": {
        "bf16": lambda: a_run(
            [forward(0, computes="float32"), backward(), step(), forward(1, computes="float32"), backward(), step()],
            precision="bf16",
        ),
    },
    "amp/backward-on-scaled-loss": {
        "never": lambda: a_run([forward(0), backward(), unscale(), taken()]),
        "not in the last micro-batch": lambda: a_run([scaled(0), forward(), backward(gradients="some"), taken()]),
    },
    "amp/same-scale-on-all-ranks": {
        "from the beginning": lambda: two_ranks(
            [forward(0), event("loss_scaled", scale=128.0), backward(scaled=128.0), by_hand(), unscale(), taken()],
            [forward(0), event("loss_scaled", scale=256.0), backward(scaled=256.0), by_hand(), unscale(), taken()],
        ),
        "by hand": lambda: two_ranks(
            [forward(0), backward(scaled=128.0), by_hand(), unscale(), taken()],
            [forward(0), backward(scaled=256.0), by_hand(), unscale(), taken()],
        ),
    },
    "amp/scaler-steps": {
        "after unscale_": lambda: a_run([scaled(0), unscale(), CLIPPED, BARE, event("update"), last()], clip=CLIP),
    },
    "amp/scaler-with-fp16": {
        "never": lambda: a_run([forward(0, computes="float16"), backward(), step()], **FP16),
    },
    "amp/skip-changes-nothing": {
        "before the skip": lambda: a_run([event("start"), scaled(0), skipped(weights=[0.9, 0.5]), last()]),
        "after the skip": lambda: a_run(
            [scaled(0), skipped(weights=[1.0, 0.5]), event("finished", weights=[0.9, 0.5])],
        ),
        "until the next window": lambda: a_run(
            [
                [forward(0, weights=[1.0, 0.5]), backward(scaled=S), skipped()],
                [forward(1, weights=[1.0, 0.25]), backward(scaled=S), taken()],
            ]
        ),
        "state in the step": lambda: a_run([scaled(0), skipped(state="another"), event("finished")]),
        "state until the next window": lambda: a_run(
            [
                [scaled(0), skipped()],
                [scaled(1), event("scaler_step", state="another"), step(scale=S), event("update")],
            ],
        ),
    },
    "amp/step-through-scaler": {
        "scale left in": lambda: a_run([scaled(0), BARE, last()]),
        "overflow not skipped": lambda: a_run([scaled(0), unscale(found_inf=True), step(**OVERFLOWED), last()]),
        "divided by a count, and bare": lambda: a_run([scaled(0), event("gradient_change", factor=0.5), BARE]),
    },
    "amp/unscale-after-last-backward": {
        "explicit": lambda: a_run([scaled(0), unscale(), more(), taken()], accumulation=2),
        "with an update each": lambda: a_run(
            [scaled(0), unscale(), event("update"), more(), unscale(), taken()], accumulation=2
        ),
    },
    "amp/unscale-after-sync": {
        "by hand": lambda: two_ranks([scaled(0), unscale(), by_hand(), taken()]),
        "reduced and scattered": lambda: two_ranks(
            [scaled(0), unscale(), by_hand(op="_reduce_scatter_base_"), taken()]
        ),
    },
    "amp/unscale-before-change": {
        "changed": lambda: a_run([scaled(0), event("gradient_change"), unscale(), taken()]),
        "changed after the backward that averages": lambda: two_ranks(
            [
                [forward(0), by_hand(during="backward"), backward(scaled=S)],
                [event("gradient_change", since=5), unscale(), taken()],
            ]
        ),
        "clipped by norm": lambda: a_run(
            [scaled(0), event("gradient_change", factor=0.01), unscale(), taken(gradients=[0.6 / S, 0.8 / S])],
            clip=CLIP,
        ),
    },
    "amp/unscale-before-clip": {
        "explicit": lambda: a_run([scaled(0), CLIPPED, unscale(), taken()], clip=CLIP),
        "within the step": lambda: a_run(
            [scaled(0), CLIPPED, event("scaler_step"), unscale(implicit=True), step(scale=S), event("update")],
            clip=CLIP,
        ),
        "by value": lambda: a_run(
            [scaled(0), {**CLIPPED, "kind": "value", "norm_type": None, "norm": None}, unscale(), taken()],
            clip={"kind": "value", "threshold": 1.0},
        ),
        "not asked for": lambda: a_run([scaled(0), CLIPPED, unscale(), taken()]),
        "after a division": lambda: a_run(
            [scaled(0), event("gradient_change", factor=0.5), CLIPPED, unscale(), taken()], clip=CLIP
        ),
    },
    "amp/unscale-before-inspection": {
        "logged": lambda: a_run([scaled(0), event("norm", norm=2048.0), unscale(), taken()]),
    },
    "amp/unscale-once": {
        "two scalers": lambda: a_run([scaled(0), unscale(), unscale(scaler=1), taken()]),
        "refused": lambda: a_run(
            [
                scaled(0),
                unscale(),
                event(
                    "raised", message="unscale_() has already been called on this optimizer since the last update()."
                ),
            ]
        ),
        "by hand first": lambda: a_run(
            [held(0, 0, 1), scaled(0), event("gradient_change", factor=1 / S), unscale(implicit=True), taken()]
        ),
        "by hand afterwards": lambda: a_run(
            [held(0, 0, 1), scaled(0), unscale(), event("gradient_change", factor=1 / S), taken()]
        ),
    },
    "amp/update-once": {
        "after each optimizer": lambda: a_run(
            [
                [held(0, 0), held(1, 1), scaled(0)],
                [unscale(), taken(), unscale(optimizer=1), event("scaler_step", optimizer=1)],
                [step(scale=S, optimizer=1, parameters=[1]), event("update")],
            ]
        ),
        "before the step": lambda: a_run([scaled(0), unscale(), event("update"), unscale(implicit=True), taken()]),
        "before any step": lambda: a_run(
            [scaled(0), event("raised", message="No inf checks were recorded prior to update.")]
        ),
        "never": lambda: a_run(
            [
                [scaled(0), event("scaler_step"), step(scale=S)],
                [scaled(1), event("scaler_step")],
                [event("raised", message="step() has already been called since the last update().")],
            ]
        ),
        "never, with a clip": lambda: a_run(
            [
                [scaled(0), unscale(), event("scaler_step"), step(scale=S)],
                [scaled(1), event("raised", message="unscale_() is being called after step().")],
            ]
        ),
    },
}


@pytest.mark.parametrize(
    ("law", "run"),
    [pytest.param(law, run, id=f"{law}-{name}") for law, runs in BREAKING.items() for name, run in runs.items()],
)
def test_broken(law, run):
    assert broken(run()) == {law}


def test_every_law_is_broken_by_a_trace():
    assert set(BREAKING) == {law.id for law in laws() if law.chapter == "amp"}


#: What breaks none of these laws.
ALLOWED = {
    "the textbook": lambda: a_run([scaled(0), more(), unscale(), CLIPPED, taken(), last()], accumulation=2, clip=CLIP),
    "no scaler": lambda: a_run([forward(0), backward(), CLIPPED, event("gradient_change"), step()], clip=CLIP),
    "unscaled in the step": lambda: a_run(
        [scaled(0), event("scaler_step"), unscale(implicit=True), step(scale=S), event("update"), last()]
    ),
    "unscaled and not clipped": lambda: a_run([scaled(0), unscale(), event("norm"), taken(), last()]),
    "scaled by hand": lambda: a_run([forward(0), backward(scaled=S), unscale(), taken(), last()]),
    "gradients multiplied by the scale": lambda: a_run(
        [forward(0), backward(), event("gradient_change", factor=S), unscale(), taken()]
    ),
    "divided gradients": lambda: a_run([scaled(0), event("gradient_change", factor=0.25), unscale(), taken(), last()]),
    "divided by as much as the scale": lambda: a_run(
        [
            [held(0, 0, 1), forward(0), event("loss_scaled", scale=2.0), backward(scaled=2.0)],
            [event("gradient_change", factor=0.5), unscale(scale=2.0), taken()],
        ]
    ),
    "clipped at a scaled threshold": lambda: a_run(
        [scaled(0), event("clip", threshold=S, norm=4096.0), unscale(), taken()], clip=CLIP
    ),
    "clamped by hand at a scaled threshold": lambda: a_run(
        [scaled(0), event("gradient_change"), unscale(), taken(gradients=[1.0, 0.25])],
        clip={"kind": "value", "threshold": 1.0},
    ),
    "clipped by hand after unscaling": lambda: a_run(
        [held(0, 0, 1), scaled(0), unscale(), event("gradient_change", factor=0.01), taken()], clip=CLIP
    ),
    "changed around a collective": lambda: two_ranks(
        [scaled(0), event("collective"), event("gradient_change", since=4), unscale(), taken()]
    ),
    "brought together in a way that leaves no trace": lambda: two_ranks(
        [scaled(0), event("gradient_change"), unscale(), taken()]
    ),
    "changed where no gradients are listed": lambda: a_run(
        [scaled(0), event("gradient_change"), unscale(), taken(gradients=None)]
    ),
    "an overflow, changed": lambda: a_run(
        [scaled(0), event("gradient_change"), unscale(found_inf=True), skipped(), last()]
    ),
    "unscaled and checked by hand": lambda: a_run([scaled(0), event("gradient_change", factor=1 / S), BARE]),
    "unscaled, and checked by hand": lambda: a_run([scaled(0), unscale(), step()]),
    "averaged by hand, then unknown": lambda: two_ranks([scaled(0), by_hand(), BARE]),
    "several optimizers": lambda: a_run(
        [
            [held(0, 0), held(1, 1), scaled(0), unscale(), unscale(optimizer=1)],
            [event("scaler_step"), step(scale=S, parameters=[0]), event("scaler_step", optimizer=1)],
            [step(scale=S, optimizer=1, parameters=[1]), event("update")],
        ]
    ),
    "one of several optimizers overflows": lambda: two_ranks(
        [
            [held(0, 0), held(1, 1), scaled(0), by_hand()],
            [unscale(found_inf=True), event("scaler_step"), event("skip", weights=[1.0, None])],
            [unscale(optimizer=1), event("scaler_step", optimizer=1), step(scale=S, optimizer=1, parameters=[1])],
            [event("update", scale_after=S / 2)],
        ]
    ),
    "a backward for each optimizer": lambda: a_run(
        [
            [held(0, 0), held(1, 1), scaled(0), unscale(), more(), unscale(optimizer=1)],
            [event("scaler_step"), step(scale=S, parameters=[0]), event("scaler_step", optimizer=1)],
            [step(scale=S, optimizer=1, parameters=[1]), event("update")],
        ]
    ),
    "another optimizer without a scaler": lambda: a_run(
        [forward(0), backward(), step(optimizer=1, parameters=[1]), more(), unscale(), taken()]
    ),
    "a gradient penalty": lambda: a_run([scaled(0), backward(scaled=S, gradients="some"), unscale(), taken()]),
    "an unscaled backward that was cleared": lambda: a_run(
        [forward(0), backward(), event("zero_grad"), scaled(None), unscale(), taken()]
    ),
    "unscaled and cleared, then anew": lambda: a_run([scaled(0), unscale(), event("zero_grad"), scaled(None), taken()]),
    "all skip": lambda: two_ranks([scaled(0), by_hand(), unscale(found_inf=True), skipped(), last()]),
    "the ranks tell each other": lambda: two_ranks(
        [scaled(0), unscale(), event("collective", reduce="max", bytes=4, elements=1), by_hand(), taken()]
    ),
    "gradients are gathered to be logged": lambda: two_ranks(
        [scaled(0), by_hand(), unscale(), by_hand(op="allgather_"), taken()]
    ),
    "Horovod is late": lambda: a_run([scaled(0), unscale(), by_hand(via="horovod"), taken()], [], backend="horovod"),
    "a scaler of one's own": lambda: a_run([scaled(0), taken(), event("update", scale_before=S, scale_after=128.0)]),
    "a scale that is down to one": lambda: a_run(
        [
            [forward(0), event("loss_scaled", scale=1.0), backward(scaled=1.0), event("scaler_step", scale=1.0)],
            [event("skip", scale=1.0), event("update", scale_before=1.0, scale_after=1.0), last()],
        ]
    ),
    "weights averaged around a skip": lambda: two_ranks(
        [
            [event("start"), scaled(0), by_hand(), skipped(weights=[1.0, 0.5])],
            [event("collective", of="parameters"), event("finished", weights=[1.0, 0.75])],
        ]
    ),
    "computed in float32 now and then": lambda: a_run(
        [forward(0, computes="bfloat16"), backward(), step(), forward(1, computes="float32"), backward(), step()],
        precision="bf16",
    ),
    "no telling what it is computed in": lambda: a_run([forward(0), backward(), step()], precision="bf16"),
    "float32 where it was asked for": lambda: a_run([forward(0, computes="float32"), backward(), step()]),
    "a scale of the trainer's own, taken off by hand": lambda: a_run(
        [forward(0, computes="float16"), backward(), event("gradient_change", factor=1 / S), step()], **FP16
    ),
    "float16 in other hands": lambda: a_run([forward(0, computes="float16"), backward(forwards=[]), step()], **FP16),
    "bfloat16 without a scaler": lambda: a_run([forward(0, computes="bfloat16"), backward(), step()], precision="bf16"),
    "cut off": lambda: a_run([scaled(0), unscale(), event("scaler_step"), event("raised", message="no memory")]),
}


@pytest.mark.parametrize("run", ALLOWED.values(), ids=ALLOWED)
def test_allowed(run):
    assert broken(run()) == set()


def test_nothing_is_checked_without_a_scaler():
    run = a_run([forward(0), backward(), CLIPPED, step(), forward(1), backward(), step()])
    assert {one.checked for one in check(run) if one.law.chapter == "amp"} == {0}


def test_a_window_that_keeps_a_law_counts():
    run = two_ranks([scaled(0), by_hand(), unscale(), CLIPPED, taken(), scaled(1), by_hand(), skipped()], clip=CLIP)
    every_window = ("backward-on-scaled-loss", "step-through-scaler", "update-once")
    assert [checked(run, f"amp/{name}") for name in every_window] == [4, 4, 4]
    assert checked(run, "amp/unscale-before-clip") == checked(run, "amp/unscale-after-sync") == 2
    assert checked(run, "amp/same-scale-on-all-ranks") == 2
    assert checked(run, "amp/all-ranks-skip") == 1
    assert checked(run, "amp/back-off") == 2


def test_one_cause_is_one_finding():
    window = [CLIPPED, unscale(), taken()]
    at_one_line = [{**entry, "where": ["train.py", 41, "train"]} for entry in window[:1]]
    run = a_run([scaled(0), at_one_line, window[1:], scaled(1), at_one_line, window[1:]], clip=CLIP)
    finding = the_finding(run, "amp/unscale-before-clip")
    assert (finding.count, finding.window) == (2, 0)


def test_a_contradiction_has_the_numbers_and_lines_of_the_run():
    run = a_run([scaled(0), CLIPPED, unscale(), taken()], clip=CLIP)
    told = the_finding(run, "amp/unscale-before-clip").broken
    assert told.contradiction == (
        "`unscale_` must come before `clip_grad_norm_`, because clipping compares the norm with 1 while gradients "
        "still carry the factor 1024. However, clip norm 1 (saw 4096) (train.py:5) came before unscale ÷ 1024 "
        "(train.py:6): a contradiction."
    )
    assert told.effect == (
        "The unscaled gradients are in effect clipped at 0.000976562; their norm becomes 0.000976562 instead of 1."
    )
    assert [event.kind for event in told.shows] == ["clip", "unscale"]


def test_a_finding_on_several_ranks_shows_them():
    finding = the_finding(
        BREAKING["amp/same-scale-on-all-ranks"]["from the beginning"](), "amp/same-scale-on-all-ranks"
    )
    assert [(event.rank, event["scale"]) for event in finding.broken.shows] == [(0, 128.0), (1, 256.0)]


def test_scales_that_differ_after_a_skip_of_one_rank_are_its_consequence():
    stepped = [scaled(0), by_hand(), unscale(found_inf=True), taken(), scaled(1), by_hand(), unscale(), taken()]
    other = [forward(1), event("loss_scaled", scale=S / 2), backward(scaled=S / 2), by_hand(), unscale(), taken()]
    run = two_ranks([scaled(0), by_hand(), unscale(found_inf=True), skipped(), other], stepped)
    assert broken(run) == {"amp/all-ranks-skip"}
