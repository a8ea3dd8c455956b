"""An equality that could not have failed is INCONCLUSIVE and never PASS."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch

from conformance.oracle.affine import Unbounded
from conformance.oracle.power import OneSampleMoved, Power
from conformance.oracle.recurrence import Recurrence
from conformance.verdict import numbers
from conformance.verdict.answers import trajectory_of
from conformance.verdict.record import record

SCALES = (Fraction(128),) * 3 + (Fraction(64),) * 3
TOO_WIDE = "this case's error bound is too wide to tell right from wrong"


def test_perturbed_answer_that_also_fits(follow, monkeypatch):
    run = follow("ddp-w2-acc2-fp32-momentum")
    assert run.judged().verdict == "PASS (exact)"
    monkeypatch.setattr(OneSampleMoved, "counted", Recurrence.counted)
    judgement = run.expect("INCONCLUSIVE", headline=TOO_WIDE, advice="run the exact cases")
    assert judgement.notes == ["a trainer that reads one sample instead of a neighbour could pass"]


def test_perturbed_answer_that_has_no_finite_bound(follow, monkeypatch):
    """It cannot show that the check can fail, which says nothing about the bound of the correct answer."""

    def unbounded(self, window):
        raise Unbounded("no bound")

    run = follow("ddp-w2-fp32-adamw")
    monkeypatch.setattr(OneSampleMoved, "counted", unbounded)
    judgement = run.expect("INCONCLUSIVE", headline=TOO_WIDE, advice="run the exact cases")
    assert judgement.notes == ["a trainer that reads one sample instead of a neighbour could pass"]
    assert judgement.trajectory is not None


def test_gap_that_is_too_small(follow, monkeypatch):
    run = follow("ddp-w2-fp32-adamw")
    found = run.judged().power
    monkeypatch.setattr(numbers, "power", lambda *arguments, **options: Power(Fraction(99, 100), found.fault))
    judgement = run.expect("INCONCLUSIVE", headline=TOO_WIDE, advice="run the exact cases")
    assert judgement.notes == [f"a trainer that {found.fault.text} could pass"]


@pytest.mark.parametrize("name", ["single-acc2-fp32-adamw", "single-acc2-bf16-adamw"])
def test_gradients_that_alone_would_show_mistakes_and_cannot_be_read(follow, name):
    """As those of AdamW by hand. The reason does not depend on the nearest bug, so the report gives it once."""
    run = follow(name)
    for step in run.of("step"):
        step["gradients"] = None
    judgement = run.expect("INCONCLUSIVE", has="which could not be read")
    assert judgement.reason.advice.endswith("pass gradients to `task.report`, or run the cases with SGD")
    assert judgement.notes[0].startswith("a trainer that ")


@pytest.mark.parametrize(("factor", "verdict"), [(1, "PASS (bounded)"), (2, "INCONCLUSIVE")])
def test_offered_gradients_count_only_if_they_are_correct(follow, factor, verdict):
    """A step that is not torch's may use others, so wrong ones prove nothing."""
    run = follow("single-acc2-fp32-adamw")
    for step in run.of("step"):
        step["offered"] = [factor * gradient for gradient in step["gradients"]]
        step["gradients"] = None
    run.expect(verdict)


def test_long_sum_in_a_short_format(follow, case):
    """A thousand roundings in bf16 have no finite bound."""
    run = follow("single-batched-fp32-multivariate")
    run.case = case("single-batched-bf16-multivariate")
    for forward in run.of("forward"):
        forward["computes"] = "bfloat16"
    judgement = run.expect("INCONCLUSIVE", "no finite error bound: ", advice="run the exact cases")
    assert judgement.trajectory is None
    assert all(guard.passed for guard in judgement.guards)


@pytest.mark.parametrize("broken", ["guard", "ranks"])
def test_what_is_wrong_without_any_bound_still_fails(follow, monkeypatch, broken):
    def unbounded(self, limit=None):
        raise Unbounded("no bound")

    run = follow("ddp-w2-fp32-momentum")
    monkeypatch.setattr(Recurrence, "run", unbounded)
    trajectory_of.cache_clear()
    if broken == "guard":
        for event in run.everywhere("topology", 0):
            event["world_size"] = 1
    else:
        run.of("step", rank=1)[0]["weights"][0] += 1
    judgement = run.expect("FAIL (numerics)" if broken == "guard" else "DIVERGED")
    assert judgement.notes == ["no finite error bound: no bound; run the exact cases"]


@pytest.mark.parametrize("wrong", [False, True])
def test_a_part_of_the_recorder_failed(follow, wrong):
    """The trainer neither passes nor fails, and the record has the traceback."""
    run = follow("ddp-w2-acc2-fp32-momentum")
    if wrong:
        run.remove(*run.of("step", rank=1))
    failed = {"observer": "optimizer", "error": "KeyError: 7", "traceback": "Traceback: ..."}
    run.after(run.of("start", rank=1)[0], {**run.of("start", rank=1)[0], "event": "observer_failed", **failed})
    del run.of("observer_failed", rank=1)[0]["weights"]
    judgement = run.judged()
    assert (judgement.verdict, judgement.laws) == ("INCONCLUSIVE", ())
    assert "`optimizer` failed in rank 1" in judgement.headline
    assert "KeyError: 7" in judgement.headline
    assert judgement.reason.advice == "report this bug of trainer-conformance with the traceback in the case"
    assert record(run.case, "mine", "mine.py", "conformance run", judgement, 0.1).ranks[1].traceback == "Traceback: ..."


def test_a_part_of_the_recorder_failed_by_a_replacement(follow):
    """That is not a bug of the recorder."""
    run = follow("ddp-w2-acc2-fp32-momentum")
    failed = {"observer": "optimizer", "error": "KeyError: 7", "traceback": "", "replaced": ["torch.Tensor.tolist"]}
    run.after(run.of("start", rank=1)[0], {**run.of("start", rank=1)[0], "event": "observer_failed", **failed})
    del run.of("observer_failed", rank=1)[0]["weights"]
    run.expect(
        "INCONCLUSIVE",
        headline="rank 1 cannot be read: the trainer replaces torch.Tensor.tolist, which the recorder calls "
        "(KeyError: 7)",
        advice="replace it on import, not while training",
    )


@pytest.mark.parametrize("kind", ["step", "finished"])
def test_parameters_that_are_split_over_the_ranks(follow, kind):
    """As in FSDP: a rank has a part of the weights, or nothing while their memory is freed."""
    run = follow("ddp-w2-acc2-fp32-momentum")
    start = run.of("start")[0]
    run.after(start, {**start, "event": "model", "model": 0, "shapes": [[1, 3]]})
    del run.of("model")[0]["weights"]
    run.of(kind)[0]["weights"] = [None] * 4
    judgement = run.judged()
    assert (judgement.verdict, judgement.laws) == ("INCONCLUSIVE", ())
    assert judgement.headline.startswith("the parameters are sharded: rank 0 ")
    assert judgement.reason.advice.startswith("shard with `fully_shard`")


@pytest.mark.parametrize("moves", [False, True])
def test_weights_that_no_step_of_torchs_has_changed(follow, moves):
    """As those of a custom optimizer class; weights that never changed are a trainer that never stepped."""
    run = follow("single-acc2-fp32-sgd")
    start = run.of("start")[0]["weights"]
    run.remove(*run.of("step"))
    if not moves:
        run.of("finished")[0]["weights"] = start
    judgement = run.expect("INCONCLUSIVE" if moves else "FAIL (numerics)")
    if moves:
        assert "derive the optimizer from `torch.optim.Optimizer`" in judgement.reason.advice


@pytest.mark.parametrize("moves", [False, True])
def test_what_another_process_trains_cannot_be_seen(follow, moves):
    """With or without its weights coming back; next to training in the trainer's own process, a fork is harmless."""
    run = follow("single-acc2-fp32-sgd")
    start = run.of("start")[0]
    run.after(start, {**start, "event": "fork"})
    del run.of("fork")[0]["weights"]
    assert run.judged().verdict == "PASS (exact)"
    run.remove(*(event for kind in ("forward", "backward_begin", "backward_end", "step") for event in run.of(kind)))
    if not moves:
        run.of("finished")[0]["weights"] = start["weights"]
    told = "train in the process that calls the function under `@trainer`"
    run.expect("INCONCLUSIVE", "rank 0 started another process, ", has=" and computed no gradients itself", advice=told)


@pytest.mark.parametrize(("kept", "verdict"), [(True, "INCONCLUSIVE"), (False, "FAIL (numerics)")])
def test_weights_that_are_rounded_until_the_end(follow, kept, verdict):
    """What a half copy was rounded from is hidden; a trainer that has nothing else ends with rounded weights."""
    run = follow("single-acc2-bf16-cast-weights")
    for forward in run.of("forward"):
        forward["rounded"] = True
    steps = run.of("step")
    for step in steps:
        step["gradients"] = None
        if step is not steps[-1] or not kept:
            step["weights"] = torch.tensor(step["weights"]).bfloat16().tolist()
    run.of("finished")[0]["weights"] = steps[-1]["weights"]
    judgement = run.expect(verdict)
    assert not kept or "show the correct weights rounded to bf16, and the full" in judgement.headline


@pytest.mark.parametrize("rows", ["of the window", "of others", "unknown", "unknown, as many as planned"])
def test_windows_that_a_scaler_of_ones_own_skips(follow, rows):
    """Nothing shows which they are, where forwards are of other rows than planned."""
    run = follow("ddp-w2-acc2-fp16-overflow", skips={2}, scales=SCALES)
    for rank in range(2):
        run.remove(*(event for kind in ("skip", "unscale", "scaler_step", "update") for event in run.of(kind, rank)))
        for step in run.of("step", rank):
            step["scale"] = None
        run.of("step", rank)[0]["weights"][0] += 1
    forward = run.of("forward")[0]
    if rows == "of others":
        forward["rows"] = run.of("forward")[-1]["rows"]
    elif rows != "of the window":
        forward["rows"] = [None] * (len(forward["rows"]) + (rows == "unknown"))
    judgement = run.judged()
    is_known = rows in ("of the window", "unknown, as many as planned")
    assert judgement.verdict == ("FAIL (numerics)" if is_known else "INCONCLUSIVE")
    assert is_known or judgement.headline.startswith("rank 0 took 5 steps in 6 windows, and its forwards have other ")


@pytest.mark.parametrize("are_right", [True, False])
def test_weights_that_change_after_the_last_step(follow, are_right):
    """As where averaged or earlier weights are loaded at the end, or the model is cast to another type."""
    run = follow("ddp-w2-acc2-fp32-momentum")
    for finished in run.everywhere("finished", 0):
        finished["weights"][0] += 1
    for step in run.everywhere("step", -1):
        step["weights"][0] += 0 if are_right else 2
    judgement = run.expect("INCONCLUSIVE" if are_right else "FAIL (numerics)")
    if are_right:
        assert judgement.headline.startswith("all steps are correct, but the weights change after the last one")
        assert judgement.laws == ()


def test_an_adapter_that_is_merged_at_the_end(follow):
    """Parameters outside the task's model are stepped; the task's own weights change once."""
    run = follow("single-acc2-fp32-momentum")
    [finished] = run.of("finished")
    run.remove(*(event for kind in ("forward", "backward_begin", "backward_end", "step") for event in run.of(kind)))
    stepped = {name: value for name, value in finished.items() if name != "weights"}
    run.before(finished, {**stepped, "event": "foreign_optimizer", "optimizer": "SGD", "shapes": [[1, 3]]})
    run.expect("INCONCLUSIVE", "rank 0 stepped parameters of shape [[1, 3]] outside the task's model")


@pytest.mark.parametrize("is_seen", [True, False])
def test_a_skip_at_a_scale_that_is_not_seen(follow, is_seen):
    """One that begins higher than the task's overflows where the task's does not."""
    run = follow("single-acc2-fp16-momentum", skips={0}, scales=(Fraction(32),) * 6)
    if not is_seen:
        run.remove(*(event for kind in ("skip", "unscale", "scaler_step", "update") for event in run.of(kind)))
        for step in run.of("step"):
            step["scale"] = None
    run.expect("FAIL (numerics)" if is_seen else "INCONCLUSIVE", "window 0 was skipped, although nothing ")
