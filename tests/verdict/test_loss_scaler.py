"""A loss scaler is judged by its skips, its updates, and its scale on all ranks."""

from __future__ import annotations

from fractions import Fraction

import pytest

from conformance.report.case_edits import OF_REASONS
from conformance.verdict.judge import judge
from conformance.verdict.numbers import OVERFLOW_KEPT
from conformance.workloads.workload import LossScale

OVERFLOW = "ddp-w2-acc2-fp16-overflow"


def with_rule(run, rule):
    """Have every update report the scaler's own ``rule``."""
    for rank in range(len(run.ranks)):
        for event in run.of("update", rank):
            event["growth_interval"] = rule.growth_interval
            event["growth_factor"] = float(rule.growth_factor)
            event["backoff_factor"] = float(rule.backoff_factor)


def test_skipping_the_overflow_together_passes(follow):
    run = follow(OVERFLOW)
    assert run.trajectory.skips == {2}
    run.expect("PASS (exact)")


def test_growing_scale_passes(follow):
    run = follow("single-acc2-fp16-growing-scale")
    assert len(set(run.trajectory.scales)) > 2
    assert run.judged().verdict == "PASS (exact)"


def test_skip_with_finite_gradients_fails(follow):
    run = follow(OVERFLOW)
    for event in run.everywhere("skip", 0):
        event["gradients_finite"] = True
    judgement = run.expect("FAIL (numerics)", headline="rank 0 skipped window 2 with finite gradients")
    assert judgement.notes == ["rank 1 skipped window 2 with finite gradients"]


def test_clipping_by_value_makes_the_gradients_of_a_skip_finite(follow):
    """torch's clip_grad_value_ clamps infinity to the threshold, after the scaler has seen it."""
    high = Fraction(2) ** 30
    scales = (high, *(high / 2**20,) * 5)
    run = follow("single-acc2-fp16-clip-value", skips={0}, scales=scales)
    with_rule(run, LossScale(high, backoff_factor=Fraction(1, 2**20)))
    run.of("skip")[0] |= {"gradients_finite": True, "gradients": [0.5, -0.5, 0.5]}
    run.of("update")[-1]["scale_after"] = float(high / 2**20)
    assert not run.judged().verdict.startswith("FAIL")


def scale_after(value, number=-1):
    """Have an update of every rank end with another scale."""
    return lambda run: [event.update(scale_after=value) for event in run.everywhere("update", number)]


def twice_the_scale_of_rank_1(run):
    for event in (*run.of("step", rank=1), *run.of("update", rank=1)):
        event |= {name: 2 * event[name] for name in ("scale", "scale_before", "scale_after") if name in event}


def twice_updated(run):
    for event in run.of("update"):
        run.after(event, dict(event))


def without_end(run):
    for event in (*run.of("step"), *run.of("update")):
        event |= {key: "inf" for key in event if key.startswith("scale") and key != "scaler"}


def unseen(run):
    """What is left of a run whose scaler is not torch's: the steps, without a scale."""
    for rank in range(len(run.ranks)):
        run.remove(*run.of("skip", rank), *run.of("update", rank))
        for event in run.of("step", rank):
            event["scale"] = None
    return run


MOMENTUM = "single-acc2-fp16-momentum"
NOT_HALVED = {"skips": {2}, "scales": (Fraction(128),) * 6}
SKIPPED = "window {} was skipped, although nothing can overflow at its loss scale"


@pytest.mark.parametrize(("skips", "reason"), [({2, 3}, OVERFLOW_KEPT.code), ({3}, "loss scale")])
def test_a_skip_for_what_the_skipped_window_before_it_left_says_what_to_clear(follow, skips, reason):
    run = follow(MOMENTUM, skips=skips)
    for event in run.of("backward_begin"):
        event["gradients"] = "some" if event["window"] == 3 else event["gradients"]
    found = run.expect("FAIL (numerics)").reason
    assert found.code == reason and found.advice and (reason in OF_REASONS) == (skips > {3})


@pytest.mark.parametrize(
    ("name", "history", "tamper", "headline"),
    [
        (MOMENTUM, {"skips": {3}}, None, SKIPPED.format(3)),
        (MOMENTUM, {"skips": {1}}, unseen, SKIPPED.format(1)),
        (OVERFLOW, {"skips": set()}, None, "window 2 overflows, but the optimizer stepped"),
        (
            OVERFLOW,
            NOT_HALVED,
            scale_after(128.0),
            "rank 0 has a loss scale of 128 after the overflow in window 2 ",
        ),
        (MOMENTUM, {}, scale_after(64.0), "rank 0 has a loss scale of 64 after its step in window 5 instead of "),
        ("single-acc2-fp16-growing-scale", {}, scale_after(32.0, 0), "rank 0 has a loss scale of 32 after "),
        ("ddp-w2-fp16-momentum", {}, twice_the_scale_of_rank_1, "the ranks' loss scales differ"),
        (MOMENTUM, {}, twice_updated, "rank 0 updated the loss scale 12 times in 6 windows"),
        (MOMENTUM, {}, lambda run: run.remove(*run.of("update")), "rank 0 updated the loss scale 0 times in 6 windows"),
        (MOMENTUM, {}, without_end, "rank 0 has a loss scale of inf"),
    ],
)
def test_what_no_scaler_does_fails(follow, name, history, tamper, headline):
    run = follow(name, **history)
    if tamper is not None:
        tamper(run)
    run.expect("FAIL (numerics)", headline)


@pytest.mark.parametrize("rank", [0, 1])
def test_skip_on_one_rank_only_diverges(follow, rank):
    run, never = follow(OVERFLOW), follow(OVERFLOW, skips=set())
    run.ranks[rank] = never.ranks[rank]
    judgement = run.judged()
    assert (judgement.verdict, judgement.divergence.window) == ("DIVERGED", 2)


def test_ranks_that_part_after_a_skip_are_told_by_window_and_by_step(follow):
    run = follow(OVERFLOW)
    run.of("step", rank=1)[3]["weights"][0] += 1
    judgement = run.judged()
    assert judgement.headline == "the ranks have different weights after window 4"
    assert (judgement.divergence.window, judgement.divergence.step) == (4, 3)


def test_ranks_that_part_after_a_skip_that_nobody_saw_are_told_by_the_window_too(follow):
    """A scaler of the trainer's own leaves a gap, which the forwards reveal."""
    run = unseen(follow(OVERFLOW))
    run.of("step", rank=1)[3]["weights"][0] += 1
    judgement = run.judged()
    assert judgement.headline == "the ranks have different weights after window 4"
    assert (judgement.divergence.window, judgement.divergence.step) == (4, 3)


def test_own_scaler_with_another_initial_scale_passes(follow):
    scales = (Fraction(256), Fraction(256), Fraction(256), *(Fraction(128),) * 3)
    run = follow(OVERFLOW, skips={2}, scales=scales)
    for event in run.everywhere("update", -1):
        event["scale_after"] = 128.0
    with_rule(run, LossScale(Fraction(256)))
    judgement = run.expect("PASS (exact)")
    assert judgement.trajectory.scales[:6] == scales


def test_own_scaler_that_begins_too_high_is_followed(follow):
    """It skips until the scale fits: the correct answer is the one without these windows."""
    high = Fraction(2) ** 30
    scales = (high, high / 2**10, high / 2**20, high / 2**20, high / 2**20, high / 2**20)
    run = follow("single-acc2-fp16-momentum", skips={0, 1}, scales=scales)
    with_rule(run, LossScale(high, backoff_factor=Fraction(1, 2**10)))
    run.of("update")[-1]["scale_after"] = float(high / 2**20)
    for event, step in zip(run.of("step"), run.trajectory.steps, strict=True):
        # Off the path that was certified, fp16 rounds: numbers without any rounding would not be those of fp16.
        event["gradients"][0] += float(step.gradient.radius[0]) / 2
    judgement = run.judged()
    too_wide = judgement.verdict == "INCONCLUSIVE" and "use `task.grad_scaler()`" in judgement.reason.advice
    assert judgement.verdict.startswith("PASS") or too_wide, (judgement.headline, judgement.notes)
    assert judgement.trajectory.skips == {0, 1}
    assert [step.window for step in judgement.trajectory.steps] == [2, 3, 4, 5]


def test_skipping_every_window_shows_nothing(follow):
    high = Fraction(2) ** 60
    scales = tuple(high / 2**window for window in range(6))
    run = follow("single-acc2-fp16-momentum", skips=set(range(6)), scales=scales)
    with_rule(run, LossScale(high))
    run.of("update")[-1]["scale_after"] = float(high / 64)
    run.expect("INCONCLUSIVE", "every window was skipped")


def test_scaler_that_is_not_torchs_is_followed_by_its_forwards(follow):
    run = unseen(follow(OVERFLOW))
    assert len(run.of("step")) == 5
    judgement = run.expect("PASS (exact)")
    assert judgement.trajectory.skips == {2}


@pytest.mark.parametrize(("scale", "verdict"), [(1000.0, "INCONCLUSIVE"), (1024.0, "FAIL (numerics)")])
def test_a_scale_that_nobody_asked_for_may_round(follow, scale, verdict):
    """Multiplying by 1000 and by its reciprocal rounds in fp32, which a power of two does not."""
    run = follow("single-acc2-fp32-momentum")
    for step in run.of("step"):
        step["scale"] = scale
    [last], [finished], least = run.of("step")[-1:], run.of("finished"), 2.0**-24
    last["gradients"][0] += least
    for event in (last, finished):
        event["weights"][0] -= least / 2
    run.remove(*run.of("update"))
    judgement = run.expect(verdict)
    assert ("a loss scale of 1000" in judgement.headline) is (scale == 1000)


def test_a_rank_that_has_run_out_of_data_updates_no_scale(follow):
    """Only who has samples for the last window looks for overflows there."""
    run = follow("ddp-w2-acc2-fp16-uneven-ranks")
    last = [event for event in run.ranks[1] if event["window"] == 5 and event["event"] in ("step", "update")]
    run.remove(*last)
    judgement = judge(run.case, run.outcome(), {"last_batch": "join"})
    assert len(last) == 2
    assert judgement.verdict == "PASS (exact)", judgement.headline


WITH_APEX = "ddp-w2-acc2-apex-O1-overflow"
#: Halved by the overflow of window 2; apex lets it grow after 2000 steps.
SCALES = tuple(Fraction(scale) for scale in (128, 128, 128, 64, 64, 64))


def by_apex(run, delayed=True):
    """The same run with apex instead of a GradScaler: `scale_loss` scales, unscales and updates."""
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
    name = WITH_APEX if delayed else "single-acc2-apex-O1-overflow"
    judgement = by_apex(follow(name, skips={2}, scales=SCALES), delayed).expect("PASS (exact)")
    assert judgement.trajectory.scales[:6] == SCALES


def test_a_scale_that_stays_fails(follow):
    by_apex(follow(WITH_APEX, skips={2}, scales=(Fraction(128),) * 6)).expect(
        "FAIL (numerics)",
        headline="rank 0 has a loss scale of 128 after the overflow in window 2 instead of 64 by GradScaler's rule",
    )


def test_scales_that_differ_fail(follow):
    run = by_apex(follow(WITH_APEX, skips={2}, scales=SCALES))
    for event in run.of("scale_loss_exit", 1)[-2:]:
        event["scale"] = event["scale_after"] = 32.0
    assert "the ranks' loss scales differ" in [run.judged().headline, *run.judged().notes]


def test_a_window_without_its_step_fails(follow):
    run = by_apex(follow(WITH_APEX, skips={2}, scales=SCALES))
    run.remove(*run.everywhere("skip", 0))
    assert run.judged().headline == "5 optimizer steps instead of 6, one per accumulation window"


def test_a_step_in_spite_of_an_overflow_fails(follow):
    run = by_apex(follow(WITH_APEX, skips=set(), scales=(Fraction(128),) * 6))
    assert run.judged().headline == "window 2 overflows, but the optimizer stepped"
