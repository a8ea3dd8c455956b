"""Broken laws overrule correct numbers or explain wrong ones, and each law's fix fits the run."""

from __future__ import annotations

import pytest

from conformance.laws import checking
from conformance.laws.fitting import fitted
from conformance.laws.law import OK, Broken, Law, laws
from conformance.laws.subjects import Window
from conformance.verdict.judge import judge


@pytest.fixture
def judged_by(follow, monkeypatch):
    """The judgement of a correct run by one law, whose judge is given."""

    def judged(judges, case="single-acc2-fp32-momentum", **more):
        law = Law("acc/by-hand", "A window MUST step.", "", "", judges=judges, scope=Window, **more)
        monkeypatch.setattr(checking, "laws", lambda: (law,))
        run = follow(case)
        return judge(run.case, run.outcome())

    return judged


def always(window):
    yield Broken(window.attempts[0], "no such step", "it was", "it is forbidden", window.attempts)


def test_law_that_gives_way_to_right_numbers(judged_by):
    judgement = judged_by(always)
    assert (judgement.verdict, judgement.findings) == ("PASS (exact)", ())


def test_law_that_gives_way_to_bounded_numbers(judged_by):
    """In fp32 the least harm of a broken law would exceed the bound."""
    judgement = judged_by(always, case="single-acc2-fp32-adamw")
    assert (judgement.verdict, judgement.findings) == ("PASS (bounded)", ())


def test_law_whose_harm_a_bound_may_hide(judged_by):
    judgement = judged_by(always, case="single-acc2-bf16-adamw")
    assert judgement.verdict == "INCONCLUSIVE"
    assert judgement.headline.startswith("acc/by-hand: it was; the error bound of this case may hide the effect")
    assert {finding.law.id for finding in judgement.findings} == {"acc/by-hand"}


@pytest.mark.parametrize(("window", "verdict"), [(1, "PASS (bounded)"), (5, "INCONCLUSIVE")])
def test_numbers_before_a_law_was_broken_say_nothing(judged_by, window, verdict):
    """The first windows are exact, and the bounds of the last ones hide what a sixth of a gradient does."""

    def there(one):
        if one.number == window:
            yield from always(one)

    assert judged_by(there, case="ddp-w3-acc2-bf16-clip-norm").verdict == verdict


def test_law_that_knows_how_another_run_goes_wrong(judged_by):
    judgement = judged_by(always, latent="In another run it matters.")
    assert (judgement.verdict, judgement.headline) == ("FAIL (law)", "acc/by-hand: it was")


def test_law_that_raises(judged_by):
    def raises(window):
        yield OK
        raise TypeError("'<' not supported between 'str' and 'float'")

    judgement = judged_by(raises)
    assert judgement.verdict == "PASS (exact)"
    [verified] = judgement.laws
    assert (verified.checked, judgement.findings) == (0, ())
    assert "TypeError: '<' not supported" in (verified.failure or "")


FIX = """
scaler.scale(criterion(model(x), y)).backward()
scaler.unscale_(optimizer)
torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
scaler.step(optimizer)
scaler.update()
"""


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        (
            "single-acc2-fp32-clip-value",
            ["criterion(model(x), y).backward()", "torch.nn.utils.clip_grad_value_(model.parameters(), clip_value)",
             "optimizer.step()"],
        ),
        (
            "single-acc2-fp32-clip-norm",
            ["criterion(model(x), y).backward()", "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
             "optimizer.step()"],
        ),
        ("single-acc2-fp16-momentum", FIX.strip().splitlines()),
    ],
)  # fmt: skip
def test_scaler_and_clip_are_those_of_the_run(follow, name, lines):
    assert fitted(FIX, follow(name).judged().runs[0]).splitlines() == lines


def test_schedule_asks_no_scaler_that_is_not_there(follow):
    fix = next(law.fix for law in laws() if law.id == "acc/schedule-per-step")
    assert fitted(fix, follow("single-acc2-fp32-momentum").judged().runs[0]).splitlines() == [
        "optimizer.step()",
        "scheduler.step()",
    ]
    assert "if scaler.get_scale() >= scale" in fitted(fix, follow("single-acc2-fp16-momentum").judged().runs[0])


@pytest.mark.parametrize(("precision", "dtype"), [("fp16", "float16"), ("bf16", "bfloat16")])
def test_autocast_is_the_type_that_was_asked_for(follow, precision, dtype):
    run = follow(f"single-acc2-{precision}-momentum").judged().runs[0]
    for other in ("float16", "bfloat16"):
        text = f"with torch.autocast(device.type, dtype=torch.{other}):"
        assert fitted(text, run) == f"with torch.autocast(device.type, dtype=torch.{dtype}):"


def test_who_has_no_ddp_averages_by_hand(follow):
    fix = next(law.fix for law in laws() if law.id == "ddp/all-reduce-every-window")
    run = follow("ddp-w2-acc2-fp32-momentum")
    assert "no_sync" in fitted(fix, run.judged().runs[0])
    for rank in (0, 1):
        run.remove(*run.of("wrap", rank=rank))
    assert fitted(fix, run.judged().runs[0]).splitlines() == [
        "for batch in window:",
        "    loss = criterion(model(batch.inputs), batch.targets) / len(window)",
        "    loss.backward()",
        "for parameter in model.parameters():  # after the last backward of the window, before clipping",
        "    dist.all_reduce(parameter.grad)",
        "    parameter.grad /= dist.get_world_size()",
    ]


def fix_of(follow, name, law):
    return fitted(next(one.fix for one in laws() if one.id == law), follow(name).judged().runs[0])


def test_an_average_by_hand_covers_what_a_rank_has_not_used_and_leaves_out_what_is_frozen(follow):
    law = "ddp/average-each-parameter"
    assert "parameter.grad is None" in fix_of(follow, "ddp-w2-fp32-unused", law)
    assert "if not parameter.requires_grad:" in fix_of(follow, "ddp-w2-acc2-fp32-frozen", law)
    assert "if" not in fix_of(follow, "ddp-w2-fp32-momentum", law)


def test_horovod_and_deepspeed_are_asked_for_calls_of_their_own(follow):
    averaged = fix_of(follow, "horovod-w2-fp32-momentum", "ddp/average-each-parameter")
    assert averaged.splitlines()[0].endswith(
        "DistributedOptimizer averages those that were trainable when it was created"
    )
    assert averaged.splitlines()[1:] == ["    hvd.allreduce_(parameter.grad, op=hvd.Average)"]
    assert "if not parameter.requires_grad:" in fix_of(
        follow, "horovod-w2-acc2-fp32-frozen", "ddp/average-each-parameter"
    )
    assert fix_of(follow, "horovod-w2-fp32-momentum", "ddp/equal-start") == (
        "hvd.broadcast_parameters(model.state_dict(), root_rank=0)"
    )
    by_engine = fix_of(follow, "deepspeed-w2-acc2-fp32-momentum", "ddp/all-reduce-every-window")
    assert "no_sync" not in by_engine
    assert by_engine.splitlines()[-1] == "    engine.step()"
