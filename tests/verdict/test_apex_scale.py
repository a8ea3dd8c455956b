"""apex's loss scale and skips are judged as GradScaler's are. It updates the scale before the step, and in no call."""

from __future__ import annotations

from fractions import Fraction

import pytest

OVERFLOW = "ddp-w2-acc2-apex-O1-overflow"
#: Halved by the overflow of window 2; apex lets it grow after 2000 steps.
SCALES = tuple(Fraction(scale) for scale in (128, 128, 128, 64, 64, 64))


def by_apex(run, delayed=True):
    """The same run with apex in the place of a GradScaler: what is scaled, unscaled and updated is in `scale_loss`."""
    last = run.case.accumulation - 1
    for events in run.ranks:
        scales = {event["window"]: event["scale"] for event in events if event["event"] == "scaler_step"}
        found = []
        for event in events:
            kind, window = event["event"], event["window"]
            fields = {**event, "optimizers": 1, "delay_unscale": delayed and event["micro_batch"] != last}
            if kind == "loss_scaled":
                found.append({**fields, "event": "scale_loss_enter"})
            elif kind == "backward_end":
                after = scales.get(window + 1, scales[window]) if event["micro_batch"] == last else scales[window]
                scale = {"scale": scales[window], "scale_after": after}
                found += [event, {**fields, **scale, "event": "scale_loss_exit"}]
            elif kind == "step":
                found.append({**event, "scale": None})
            elif kind not in ("unscale", "scaler_step", "update"):
                found.append(event)
        events[:] = [{**event, "seq": seq} for seq, event in enumerate(found)]
    return run


@pytest.mark.parametrize("delayed", [True, False])
def test_an_overflow_that_is_skipped_and_halves_the_scale_passes(follow, delayed):
    """On one rank without `delay_unscale` too: then each pass updates the scale."""
    name = OVERFLOW if delayed else "single-acc2-apex-O1-overflow"
    judgement = by_apex(follow(name, skips={2}, scales=SCALES), delayed).judged()
    assert judgement.verdict == "PASS (exact)", (judgement.headline, judgement.findings)
    assert judgement.trajectory.scales[:6] == SCALES


def test_a_scale_that_stays_fails(follow):
    judgement = by_apex(follow(OVERFLOW, skips={2}, scales=(Fraction(128),) * 6)).judged()
    assert judgement.verdict == "FAIL (numerics)"
    assert judgement.headline == (
        "rank 0 has a loss scale of 128 after the overflow in window 2, where GradScaler's rule gives 64"
    )


def test_scales_that_differ_fail(follow):
    run = by_apex(follow(OVERFLOW, skips={2}, scales=SCALES))
    for event in run.of("scale_loss_exit", 1)[-2:]:
        event["scale"] = event["scale_after"] = 32.0
    assert "the ranks' loss scales differ" in [run.judged().headline, *run.judged().notes]


def test_a_window_without_its_step_fails(follow):
    run = by_apex(follow(OVERFLOW, skips={2}, scales=SCALES))
    run.remove(*run.everywhere("skip", 0))
    assert run.judged().headline == "5 optimizer steps instead of 6, one per accumulation window"


def test_a_step_in_spite_of_an_overflow_fails(follow):
    run = by_apex(follow(OVERFLOW, skips=set(), scales=(Fraction(128),) * 6))
    assert run.judged().headline == "window 2 overflows, but the optimizer stepped"
