"""The laws of gradients that carry the loss scale: traces that keep them, that break them, and permissions."""

from __future__ import annotations

from .building import TWO, a_run, backward, event, forward, hold, right, step
from .building_amp import CLIP, CLIPPED, S, by_hand, last, more, scaled, skipped, taken, two_ranks, unscale
from .findings import laws_in, tables, the_finding


def changed(before, **fields):
    """The gradients were `before`, and have changed."""
    return event("gradient_change", before=before, **fields)


#: By law: runs that break only this law.
BREAKING = {
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
        "changed": lambda: a_run([event("start"), scaled(0), changed(right([0, 1], S)), unscale(), taken()]),
        "made finite": lambda: a_run([scaled(0), changed(["inf", 1.0], factor="nan"), unscale(), taken()]),
        "changed after the backward that averages": lambda: two_ranks(
            [
                [event("start"), forward(0), by_hand(during="backward"), backward(scaled=S)],
                [changed(right([0, 1], S), since=5), unscale(), taken()],
            ]
        ),
        "clipped by norm": lambda: a_run(
            [
                [event("start"), scaled(0), changed(right([0, 1], S), factor=0.01)],
                [unscale(), taken(gradients=[0.6 / S, 0.8 / S])],
            ],
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
            [hold(0, 0, 1), scaled(0), event("gradient_change", factor=1 / S), unscale(implicit=True), taken()]
        ),
        "by hand afterwards": lambda: a_run(
            [hold(0, 0, 1), scaled(0), unscale(), event("gradient_change", factor=1 / S), taken()]
        ),
    },
}


def test_every_law_is_broken_by_a_trace():
    assert set(BREAKING) == laws_in("amp_unscaling")


#: What breaks no law of the chapter.
ALLOWED = {
    "unscaled in the step": lambda: a_run(
        [scaled(0), event("scaler_step"), unscale(implicit=True), step(scale=S), event("update"), last()]
    ),
    "unscaled and not clipped": lambda: a_run([scaled(0), unscale(), event("norm"), taken(), last()]),
    "gradients multiplied by the scale": lambda: a_run(
        [forward(0), backward(), event("gradient_change", factor=S), unscale(), taken()]
    ),
    "divided gradients": lambda: a_run([scaled(0), event("gradient_change", factor=0.25), unscale(), taken(), last()]),
    "divided by as much as the scale": lambda: a_run(
        [
            [hold(0, 0, 1), forward(0), event("loss_scaled", scale=2.0), backward(scaled=2.0)],
            [event("gradient_change", factor=0.5), unscale(scale=2.0), taken()],
        ]
    ),
    "clipped at a scaled threshold": lambda: a_run(
        [scaled(0), event("clip", threshold=S, norm=4096.0), unscale(), taken()], clip=CLIP
    ),
    "clamped by hand at a scaled threshold": lambda: a_run(
        [event("start"), scaled(0), changed(right([0, 1], S)), unscale(), taken(gradients=[1.0, 0.25])],
        clip={"kind": "value", "threshold": 1.0},
    ),
    "clipped by hand after unscaling": lambda: a_run(
        [hold(0, 0, 1), scaled(0), unscale(), event("gradient_change", factor=0.01), taken()], clip=CLIP
    ),
    "averaged with another rank": lambda: two_ranks(
        *(
            [event("start"), scaled(0), changed(right([rank], S)), unscale(), taken(), event("finished")]
            for rank in (0, 1)
        ),
        micro_batch_size=1,
        orders=[[[[0]], [[1]]]],
    ),
    "summed up elsewhere": lambda: a_run(
        [event("start"), scaled(0), event("zero_grad"), scaled(None), changed(right([1], S / 2)), unscale(), taken()],
        **TWO,
    ),
    "changed where no gradients are listed": lambda: a_run(
        [event("start"), scaled(0), changed(right([0, 1], S)), unscale(), taken(gradients=None)]
    ),
    "changed where no weights are known": lambda: a_run([scaled(0), changed(right([0, 1], S)), unscale(), taken()]),
    "copied to masters": lambda: a_run([scaled(0), event("gradient_change", of_masters=True), unscale(), taken()]),
    "an overflow, changed": lambda: a_run(
        [scaled(0), event("gradient_change"), unscale(found_inf=True), skipped(), last()]
    ),
    "a backward for each optimizer": lambda: a_run(
        [
            [hold(0, 0), hold(1, 1), scaled(0), unscale(), more(), unscale(optimizer=1)],
            [event("scaler_step"), step(scale=S, parameters=[0]), event("scaler_step", optimizer=1)],
            [step(scale=S, optimizer=1, parameters=[1]), event("update")],
        ]
    ),
    "again after a clear": lambda: a_run([scaled(0), unscale(), event("zero_grad"), scaled(None), taken()]),
    "the ranks tell each other": lambda: two_ranks(
        [scaled(0), unscale(), event("collective", reduce="max", bytes=4, elements=1), by_hand(), taken()]
    ),
    "gradients are gathered to be logged": lambda: two_ranks(
        [scaled(0), by_hand(), unscale(), by_hand(op="allgather_"), taken()]
    ),
    "Horovod is late": lambda: a_run([scaled(0), unscale(), by_hand(via="horovod"), taken()], [], backend="horovod"),
}


test_broken, test_allowed = tables(BREAKING, ALLOWED, "amp")


def test_one_cause_is_one_finding():
    window = [CLIPPED, unscale(), taken()]
    at_one_line = [{**entry, "where": ["train.py", 41, "train"]} for entry in window[:1]]
    run = a_run([scaled(0), at_one_line, window[1:], scaled(1), at_one_line, window[1:]], clip=CLIP)
    finding = the_finding(run, "amp/unscale-before-clip")
    assert (finding.count, finding.window) == (2, 0)


def test_a_breach_has_the_numbers_and_lines_of_the_run():
    run = a_run([scaled(0), CLIPPED, unscale(), taken()], clip=CLIP)
    told = the_finding(run, "amp/unscale-before-clip").broken
    assert (told.expected, told.observed, told.why) == (
        "`unscale_` before `clip_grad_norm_`",
        "clip norm 1 (of norm 4096) (train.py:5) came before unscale ÷ 1024 (train.py:6)",
        "clipping compares the norm with 1, but gradients still carry the loss scale 1024",
    )
    assert (
        told.effect == "The effective threshold is 0.000976562 instead of 1; the norm becomes 0.000976562 instead of 1."
    )
    assert [event.event for event in told.shows] == ["clip", "unscale"]
