"""The laws of overflows and of the loss scale: traces that keep them, that break them, and permissions."""

from __future__ import annotations

from functools import partial

from conformance.laws.subjects import Run

from .building import a_run, backward, event, forward, hold, step
from .building_amp import S, by_hand, last, scaled, skipped, taken, two_ranks, unscale
from .building_ddp import ALL_REDUCE, FIRST
from .findings import broken_of, laws_in, tables, the_finding

broken = partial(broken_of, {"amp"})

OVERFLOWED = {"gradients": ["inf", 1.0]}


def scaled_by_hand(*scales, interval=1, asked=("loss scaling",), precision="fp16"):
    """A run whose windows have these loss scales by hand, and a growth interval; all windows step."""
    bodies = []
    for number, scale in enumerate(scales):
        rows, outputs = [2 * number, 2 * number + 1], [1.5 + 2 * number, 2.5 + 2 * number]
        residuals = [output - 2 * (row + 1.0) for output, row in zip(outputs, rows, strict=True)]
        seen = {"outputs": [outputs], "output_gradients": [[scale * residual for residual in residuals]]}
        computes = "float16" if precision == "fp16" else "float32"
        bodies.append([forward(number, rows=rows, computes=computes), backward(**seen), step(), event("zero_grad")])
    settings = {"init_scale": scales[0], "growth_interval": interval, "growth_factor": 2.0, "backoff_factor": 0.5}
    scaler = settings if precision == "fp16" else None
    return a_run([bodies, event("finished", asked=[*asked])], precision=precision, scaler=scaler)


def resumed_by_hand(*scales, **changes):
    """As `scaled_by_hand`, with a resume after the first window."""
    whole = scaled_by_hand(*scales, **changes)
    first = [event for event in whole.ranks[0].events if event.window == 0]
    before, after = (Run(whole.plan, [tuple(events)]) for events in (first, whole.ranks[0].events[len(first) :]))
    after.resume(before)
    return after


#: By law: runs that break only this law.
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
        "one skips by hand, which shows no average": lambda: two_ranks(
            [forward(0), backward(), ALL_REDUCE, step(**OVERFLOWED)],
            [forward(0), backward(), event("collective")],
            precision="fp16",
        ),
        "an infinity that a clip by value hides": lambda: two_ranks(
            [FIRST, forward(1), backward(), ALL_REDUCE, step(weights=[0.25, 0.0])],
            [FIRST, forward(1), backward(), ALL_REDUCE, event("finished", weights=[0.5, 0.0])],
            precision="fp16",
            clip={"kind": "value", "threshold": 1.0},
        ),
    },
    "amp/back-off": {
        "stays": lambda: a_run([scaled(0), skipped(after=S), last()]),
        "grows": lambda: a_run([scaled(0), skipped(after=2 * S), last()]),
        "becomes infinite": lambda: a_run([scaled(0), skipped(after="inf"), last()]),
    },
    "amp/one-scaler": {
        "a new one in the second window": lambda: a_run(
            [
                [scaled(0), unscale(), skipped()],
                [event("zero_grad"), scaled(1), unscale(scaler=1), event("scaler_step", scaler=1)],
                [step(scale=S), event("update", scaler=1)],
            ]
        ),
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
    "amp/scale-as-set": {
        "never grows": lambda: scaled_by_hand(128.0, 128.0),
        "grows too early": lambda: scaled_by_hand(128.0, 256.0, interval=2),
    },
    "amp/scale-restored": {
        "starts over": lambda: resumed_by_hand(128.0, 128.0),
        "grows too early": lambda: resumed_by_hand(128.0, 256.0, interval=2),
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
                [forward(1, states=["another"]), backward(scaled=S), event("scaler_step", state="another")],
                [step(scale=S), event("update")],
            ],
        ),
    },
}


def test_every_law_is_broken_by_a_trace():
    assert set(BREAKING) == laws_in("amp_overflow")


#: What breaks no law of the chapter.
ALLOWED = {
    "a new scaler at the scale of the old one": lambda: a_run(
        [
            [scaled(0), unscale(), taken()],
            [event("zero_grad"), scaled(1), unscale(scaler=1), event("scaler_step", scaler=1)],
            [step(scale=S), event("update", scaler=1)],
        ]
    ),
    "one of several optimizers overflows": lambda: two_ranks(
        [
            [hold(0, 0), hold(1, 1), scaled(0), by_hand()],
            [unscale(found_inf=True), event("scaler_step"), event("skip", weights=[1.0, None])],
            [unscale(optimizer=1), event("scaler_step", optimizer=1), step(scale=S, optimizer=1, parameters=[1])],
            [event("update", scale_after=S / 2)],
        ]
    ),
    "all skip": lambda: two_ranks([scaled(0), by_hand(), unscale(found_inf=True), skipped(), last()]),
    "a custom scaler": lambda: a_run([scaled(0), taken(), event("update", scale_before=S, scale_after=128.0)]),
    "a scale that is down to one": lambda: a_run(
        [
            [forward(0), event("loss_scaled", scale=1.0), backward(scaled=1.0), event("scaler_step", scale=1.0)],
            [event("skip", scale=1.0), event("update", scale_before=1.0, scale_after=1.0), last()],
        ]
    ),
    "a state that changes in the next window": lambda: a_run(
        [
            [scaled(0), skipped()],
            [forward(1, states=["same"]), backward(scaled=S), event("scaler_step", state="another")],
            [step(scale=S), event("update")],
        ]
    ),
    "a scale by hand that grows as set": lambda: scaled_by_hand(128.0, 256.0),
    "a scale by hand that is restored": lambda: resumed_by_hand(128.0, 256.0),
    "a scale by hand by another rule that is resumed": lambda: resumed_by_hand(128.0, 128.0, asked=()),
    "a scale by hand by another rule": lambda: scaled_by_hand(128.0, 128.0, asked=()),
    "a scale by hand without loss scaling": lambda: scaled_by_hand(1.0, 1.0, precision="fp32"),
    "weights averaged around a skip": lambda: two_ranks(
        [
            [event("start"), scaled(0), by_hand(), skipped(weights=[1.0, 0.5])],
            [event("collective", of="parameters"), event("finished", weights=[1.0, 0.75])],
        ]
    ),
}


test_broken, test_allowed = tables(BREAKING, ALLOWED, "amp")


def test_a_finding_on_several_ranks_shows_them():
    finding = the_finding(
        BREAKING["amp/same-scale-on-all-ranks"]["from the beginning"](), "amp/same-scale-on-all-ranks"
    )
    assert [(event.rank, event.scale) for event in finding.broken.shows] == [(0, 128.0), (1, 256.0)]


def test_scales_that_differ_after_a_skip_of_one_rank_are_its_consequence():
    stepped = [scaled(0), by_hand(), unscale(found_inf=True), taken(), scaled(1), by_hand(), unscale(), taken()]
    other = [forward(1), event("loss_scaled", scale=S / 2), backward(scaled=S / 2), by_hand(), unscale(), taken()]
    run = two_ranks([scaled(0), by_hand(), unscale(found_inf=True), skipped(), other], stepped)
    assert broken(run) == {"amp/all-ranks-skip"}


def test_a_window_that_one_rank_leaves_out_is_compared_with_no_other():
    """The scale halves from window to window on both ranks, and one of them does not have the second one."""
    scales = [S / 2**window for window in range(4)]
    whole = [
        [forward(window), event("loss_scaled", scale=scale), backward(scaled=scale), by_hand(), taken()]
        for window, scale in enumerate(scales)
    ]
    run = two_ranks([*whole], [*whole[:1], *whole[2:]])
    assert "amp/same-scale-on-all-ranks" not in broken(run)
