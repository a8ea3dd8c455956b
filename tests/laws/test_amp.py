"""The laws of autocast and GradScaler's calls: traces that keep them, that break them, and permissions."""

from __future__ import annotations

from .building import a_run, backward, event, forward, hold, step
from .building_amp import CLIP, CLIPPED, S, by_hand, last, more, scaled, skipped, taken, two_ranks, unscale
from .findings import all_checked, checked, laws_in, laws_of, tables

BARE = step(parameters=[0, 1])
FP16 = {"precision": "fp16", "scaler": {}}
#: At outputs 1.5 and 2.5 for the targets 2 and 4, of the mean of both squared errors.
AT_OUTPUTS = [-0.5, -1.5]
OVERFLOWED = {"gradients": ["inf", 1.0]}


def on_outputs(gradients):
    """A backward with these gradients at the model's outputs."""
    return backward(outputs=[[1.5, 2.5]], output_gradients=[gradients])


def around_all(*between, **fields):
    """Two windows in one region of autocast, with events between them."""
    windows = [[forward(at, computes="bfloat16"), backward(), step(), event("zero_grad")] for at in (0, 1)]
    return [event("autocast_enter", **fields), windows[0], *between, windows[1], event("autocast_exit")]


#: By law: runs that break only this law.
BREAKING = {
    "amp/autocast-around-forward": {
        "bf16": lambda: a_run(
            [forward(0, computes="float32"), backward(), step(), forward(1, computes="float32"), backward(), step()],
            precision="bf16",
        ),
        "in one micro-batch only": lambda: a_run(
            [forward(0, computes="bfloat16"), backward(), forward(computes="float32"), backward(), step()],
            precision="bf16",
        ),
        "another type": lambda: a_run([forward(0, computes="float16"), backward(), step()], precision="bf16"),
    },
    "amp/autocast-ends-in-window": {
        "around all windows": lambda: a_run(around_all(), precision="bf16"),
    },
    "amp/autocast-only-if-asked": {
        "always on": lambda: a_run([forward(0, computes="bfloat16"), backward(), step()]),
        "in one micro-batch": lambda: a_run(
            [forward(0, computes="float64"), backward(), forward(computes="float16"), backward(), step()],
            precision="fp64",
        ),
    },
    "amp/state-in-full-precision": {
        name: lambda precision=precision, dtypes=dtypes: a_run(
            [forward(0), backward(), step(dtypes=dtypes)], precision=precision
        )
        for name, precision, dtypes in (
            ("momentum in 16 bits", "fp32", ["bfloat16", "float32"]),
            ("moments in single precision", "fp64", ["float32", "float64"]),
            ("weights in 16 bits", "bf16", ["bfloat16"]),
            ("8 bits", "fp32", ["float32", "float8_e4m3fn"]),
        )
    },
    "amp/backward-on-scaled-loss": {
        "never": lambda: a_run([forward(0), backward(), unscale(), taken()]),
        "not in the last micro-batch": lambda: a_run([scaled(0), forward(), backward(gradients="some"), taken()]),
    },
    "amp/scaler-steps": {
        "after unscale_": lambda: a_run([scaled(0), unscale(), CLIPPED, BARE, event("update"), last()], clip=CLIP),
    },
    "amp/scaler-with-fp16": {
        "never": lambda: a_run([forward(0, computes="float16"), on_outputs(AT_OUTPUTS), step()], **FP16),
    },
    "amp/step-through-scaler": {
        "scale left in": lambda: a_run([scaled(0), BARE, last()]),
        "overflow not skipped": lambda: a_run([scaled(0), unscale(found_inf=True), step(**OVERFLOWED), last()]),
        "divided by a count, and bare": lambda: a_run([scaled(0), event("gradient_change", factor=0.5), BARE]),
    },
    "amp/update-once": {
        "after each optimizer": lambda: a_run(
            [
                [hold(0, 0), hold(1, 1), scaled(0)],
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


def test_every_law_is_broken_by_a_trace():
    assert set(BREAKING) == laws_of("amp") - laws_in("amp_overflow", "amp_unscaling")


#: What breaks no law of the chapter.
ALLOWED = {
    "autocast around the loop, left and entered again": lambda: a_run(
        around_all(event("autocast_exit"), event("autocast_enter")), precision="bf16"
    ),
    "autocast around the loop, without its cache": lambda: a_run(around_all(caches=False), precision="bf16"),
    "the textbook": lambda: a_run([scaled(0), more(), unscale(), CLIPPED, taken(), last()], accumulation=2, clip=CLIP),
    "no scaler": lambda: a_run([forward(0), backward(), CLIPPED, event("gradient_change"), step()], clip=CLIP),
    "scaled by hand": lambda: a_run([forward(0), backward(scaled=S), unscale(), taken(), last()]),
    "unscaled and checked by hand": lambda: a_run([scaled(0), event("gradient_change", factor=1 / S), BARE]),
    "unscaled, and checked by hand": lambda: a_run([scaled(0), unscale(), step()]),
    "moments in double precision": lambda: a_run([forward(0), backward(), step(dtypes=["float32", "float64"])]),
    "averaged by hand, then unknown": lambda: two_ranks([scaled(0), by_hand(), BARE]),
    "several optimizers": lambda: a_run(
        [
            [hold(0, 0), hold(1, 1), scaled(0), unscale(), unscale(optimizer=1)],
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
    "a penalty in float32 next to it": lambda: a_run(
        [
            forward(0, computes="bfloat16"),
            forward(computes="float32", micro_batch=0),
            backward(forwards=[0, 1]),
            step(),
        ],
        precision="bf16",
    ),
    "an unknown type": lambda: a_run([forward(0), backward(), step()], precision="bf16"),
    "float32 where it was asked for": lambda: a_run([forward(0, computes="float32"), backward(), step()]),
    "the trainer's own scale, taken off unseen": lambda: a_run(
        [forward(0, computes="float16"), on_outputs([S * one for one in AT_OUTPUTS]), step()], **FP16
    ),
    "a scale of two": lambda: a_run(
        [forward(0, computes="float16"), on_outputs([2 * one for one in AT_OUTPUTS]), step()], **FP16
    ),
    "a loss that is not read": lambda: a_run([forward(0, computes="float16"), backward(), step()], **FP16),
    "float16 in other hands": lambda: a_run([forward(0, computes="float16"), backward(forwards=[]), step()], **FP16),
    "bfloat16 without a scaler": lambda: a_run([forward(0, computes="bfloat16"), backward(), step()], precision="bf16"),
    "cut off": lambda: a_run([scaled(0), unscale(), event("scaler_step"), event("raised", message="no memory")]),
}


test_broken, test_allowed = tables(BREAKING, ALLOWED, "amp")


def test_nothing_is_checked_without_a_scaler():
    run = a_run([forward(0), backward(), CLIPPED, step(), forward(1), backward(), step()])
    assert set(all_checked("amp", run).values()) == {0}


def test_a_window_that_keeps_a_law_counts():
    run = two_ranks([scaled(0), by_hand(), unscale(), CLIPPED, taken(), scaled(1), by_hand(), skipped()], clip=CLIP)
    every_window = ("backward-on-scaled-loss", "step-through-scaler", "update-once")
    assert [checked(run, f"amp/{name}") for name in every_window] == [4, 4, 4]
    assert checked(run, "amp/unscale-before-clip") == checked(run, "amp/unscale-after-sync") == 2
    assert checked(run, "amp/same-scale-on-all-ranks") == 2
    assert checked(run, "amp/all-ranks-skip") == 1
    assert checked(run, "amp/back-off") == 2
