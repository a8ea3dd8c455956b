"""What a case says of the catalogued faults: which make its numbers, and which would have shown."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from conformance.oracle.affine import Affine
from conformance.oracle.faults import CATALOGUE, KNOWN, applicable
from conformance.oracle.faults.averaging import LossSummed, SumOverRanks, SumOverWindow
from conformance.oracle.faults.clip_and_scale import ClipsEachOptimizer, ClipsEachPart, NotClipped
from conformance.oracle.faults.optimizing import NoWeightDecay, WeightDecayTwice
from conformance.oracle.recurrence import Recurrence, deviating
from conformance.verdict.diagnosis import Suspects
from conformance.workloads.layout import Window

#: Where each fault shows: the first of these cases that it applies to.
CASES = (
    "ddp-w2-acc3-fp32-momentum",
    "single-acc3-fp32-momentum",
    "ddp-w2-acc2-fp16-clip-value",
    "ddp-w2-acc2-fp32-weighted",
    "single-acc2-fp32-decay",
    "single-acc3-fp32-short-window",
    "ddp-w2-fp32-sgd",
    "ddp-w2-fp16-overflow",
    "single-acc2-fp16-clip-norm",
    "single-acc2-fp32-two-groups",
    "single-acc2-fp32-fine-gradients",
    "ddp-w2-acc2-fp32-fine-gradients",
    "single-acc2-fp32-two-groups-clip",
    "single-acc2-fp32-adamw-clip",
    "single-acc2-fp32-fine-data",
    "single-acc2-fp16-cast-weights",
    "ddp-w2-acc2-fp32-uneven-ranks",
    "ddp-w2-acc2-fp32-uneven-batch",
    "ddp-w2-acc2-fp32-momentum-resumed-at-3",
    "ddp-w2-acc2-fp32-momentum-resumed-at-3-inside-window",
    "ddp-w2-acc2-fp32-momentum-resumed-at-4-on-3-ranks",
    "single-acc2-fp32-adamw-resumed-at-3",
    "single-acc2-fp32-two-groups-resumed-at-3",
    "single-acc2-fp32-many-tensors",
    "ddp-w2-acc2-fp32-many-tensors",
    "single-acc2-fp32-many-tensors-resumed-at-4",
    "single-acc2-fp32-many-groups",
    "single-acc2-fp32-frozen",
    "single-acc2-fp32-ema",
    "single-acc2-fp32-unfrozen",
    "single-acc2-fp32-unfrozen-clip-value",
    "ddp-w2-acc2-fp32-unused",
    "ddp-w2-fp32-sparse",
    "single-acc2-fp32-adagrad",
    "single-acc2-fp32-short-epochs",
    "single-acc2-fp32-epoch-schedule",
    "single-acc2-fp32-two-layers",
    "ddp-w2-acc2-fp32-clip-norm",
    "ddp-w2-acc2-fp32-many-clip-norm",
    "single-acc2-fp64-adamw",
)

#: What the record must show for a bug that depends on it: the first parameter, and the others.
_PARTS = (frozenset({0}), frozenset({1}))
SEEN = {
    "clips-each-optimizer": type("Seen", (ClipsEachOptimizer,), {"optimizers": _PARTS}),
    "clips-each-part": type("Seen", (ClipsEachPart,), {"clips": _PARTS}),
}


@pytest.mark.parametrize("fault", KNOWN, ids=lambda fault: fault.name)
def test_each_fault_explains_its_own_numbers(follow, case, fault):
    shown = next((name for name in CASES if fault.applies(case(name).problem)), None)
    assert shown, f"no case of this test shows {fault.name}: add one"
    judgement = follow(shown, SEEN.get(fault.name, fault.textbook)).expect("FAIL (numerics)")
    assert fault.name in judgement.suspects.explained_by
    assert fault.name not in judgement.suspects.ruled_out


def test_right_numbers_rule_out_every_fault(follow, case):
    found = follow("ddp-w2-acc2-fp32-momentum").judged().suspects
    known = {fault.name for fault in applicable(case("ddp-w2-acc2-fp32-momentum").problem)}
    assert (found.explained_by, {*found.ruled_out}, found.gradient_factors, found.step_factors) == ((), known, (), ())


def test_faults_that_make_the_same_numbers_are_all_kept(follow):
    """With two ranks and two micro-batches both sums double the gradient."""
    found = follow("ddp-w2-acc2-fp32-momentum", SumOverRanks).judged().suspects
    assert found.explained_by == ("sum-over-ranks", "sum-over-window")
    assert found.gradient_factors == (2,)
    assert {"world-divided-twice", "steps-twice"} <= {*found.ruled_out}


def test_the_first_steps_alone_explain_nothing(follow):
    class AlsoStepsTwiceLater(SumOverWindow):
        def update(self, weights: Affine, vector: Affine, step: int) -> Affine:
            once = super().update(weights, vector, step)
            return super().update(once, vector, step) if step > 2 else once

    judgement = follow("single-acc2-fp32-sgd", AlsoStepsTwiceLater).judged()
    assert judgement.difference.step == 0
    assert judgement.suspects.explained_by == ()


@pytest.mark.parametrize(
    ("name", "one", "two"),
    [
        ("ddp-w2-acc3-fp32-momentum", "sum-over-ranks", "sum-over-window"),
        ("ddp-w2-acc3-fp32-momentum", "not-synchronised", "momentum-lost"),
        ("single-acc2-fp32-decay", "sample-dropped", "no-weight-decay"),
        ("ddp-w2-fp32-adamw", "world-divided-twice", "weight-decay-twice"),
    ],
)
def test_two_faults_at_once_explain_their_numbers(follow, name, one, two):
    faults = [fault for fault in CATALOGUE if fault.name in (one, two)]
    judgement = follow(name, deviating(faults)).expect("FAIL (numerics)")
    assert " + ".join(fault.name for fault in faults) in judgement.suspects.explained_by


def test_two_faults_explain_nothing_where_one_makes_the_same_numbers(follow):
    """Two ranks and two micro-batches: two of these three cancel."""
    faults = [fault for fault in CATALOGUE if fault.name in ("sum-over-ranks", "window-divided-twice", "loss-summed")]
    assert follow("ddp-w2-acc2-fp32-momentum", deviating(faults)).judged().suspects.explained_by == ("loss-summed",)


def in_windows(textbook, decision, *numbers):
    """The textbook that makes one decision in these windows as the fault does, and all others correctly."""

    def decide(self, *of):
        return getattr(textbook if self.window.index in numbers else Recurrence, decision)(self, *of)

    return type("InSomeWindows", (textbook,), {decision: decide})


@pytest.mark.parametrize(
    ("name", "textbook", "said"),
    [
        (
            "single-acc2-fp32-short-clip-norm",
            in_windows(NotClipped, "clip", 11),
            "not-clipped only in short windows",
        ),
        (
            "single-acc2-fp32-clip-value-resumed-at-3",
            in_windows(NotClipped, "clip", 3, 4, 5),
            "not-clipped only after a resume",
        ),
        (
            "single-acc2-fp32-epoch-schedule",
            in_windows(SumOverWindow, "over_window", 1, 3, 5),
            "sum-over-window only at the end of an epoch",
        ),
        (
            "single-acc2-fp16-overflow",
            in_windows(SumOverWindow, "over_window", 3),
            "sum-over-window only in the window after an overflow",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_fault_of_some_windows_is_named_with_them(follow, name, textbook, said):
    assert said in follow(name, textbook).expect("FAIL (numerics)").suspects.explained_by


@pytest.mark.parametrize(("fault", "times"), [(NoWeightDecay, 0), (WeightDecayTwice, 2)])
def test_settings_of_some_windows_are_named_with_them(follow, fault, times):
    class AfterResume(Recurrence):
        def stepped(self, weights: Affine, *of: object) -> Affine:
            for rule, _ in self.rules if self.window.index == 3 else ():
                rule.spec = replace(rule.spec, weight_decay=times * rule.spec.weight_decay)
            return super().stepped(weights, *of)

    found = follow("single-acc2-fp32-two-groups-resumed-at-3", AfterResume).judged().suspects.explained_by
    [name] = [one.name for one in CATALOGUE if one.textbook is fault]
    assert f"{name} only after a resume" in found


@pytest.mark.parametrize(
    ("name", "windows"),
    [
        # Both are short, and one is correct.
        ("single-acc2-fp32-short-epochs", [2]),
        ("single-acc2-fp32-short-epochs", [5]),
        ("single-acc2-fp32-momentum", [3, 4, 5]),
        ("single-acc2-fp32-momentum-resumed-at-3", [3, 5]),
        ("single-acc2-fp32-momentum-resumed-at-3", [2, 3, 4, 5]),
    ],
)
def test_a_fault_of_other_windows_is_not_named(follow, name, windows):
    wrong = in_windows(LossSummed, "over_samples", *windows)
    assert follow(name, wrong).expect("FAIL (numerics)").suspects.explained_by == ()


@pytest.mark.parametrize("name", ["single-acc2-fp32-momentum", "single-acc3-fp32-sgd"])
@pytest.mark.parametrize("factor", ["1/2", "5"])
def test_a_constant_factor_is_seen(follow, name, factor):
    class Multiplied(Recurrence):
        def over_samples(self, window: Window) -> Fraction:
            return Fraction(factor)

    found = follow(name, Multiplied).judged().suspects
    assert (found.gradient_factors, found.step_factors) == ((Fraction(factor),), ())


@pytest.mark.parametrize("name", ["single-acc2-fp32-decay", "single-acc2-fp32-adamw", "single-acc2-fp32-clip-value"])
def test_a_constant_factor_of_each_step_is_seen(follow, name):
    class HalfAsFar(Recurrence):
        def learning_rate(self, step: int, group: int = 0) -> Fraction:
            return super().learning_rate(step, group) / 2

    run = follow(name, HalfAsFar)
    assert run.judged().suspects.step_factors == (Fraction(1, 2),)
    for step in run.of("step"):
        step["gradients"] = None
    found = run.judged().suspects
    assert found.step_factors == (Fraction(1, 2),)
    assert name != "single-acc2-fp32-adamw" or found.gradient_factors == ()


@pytest.mark.parametrize("name", ["single-acc2-fp32-clip-value", "single-acc2-fp32-adamw-clip"])
def test_a_constant_factor_after_clipping_is_seen(follow, name):
    class ClippedAndDoubled(Recurrence):
        def clip(self, vector: Affine) -> Affine:
            return super().clip(vector).scaled(Fraction(2))

    assert follow(name, ClippedAndDoubled).judged().suspects.gradient_factors == (2,)


def test_a_constant_factor_that_is_a_root_is_seen(follow):
    """Its ratio to the correct gradient is known to 24 bits only, which is too little for six steps."""

    class DividedByARoot(Recurrence):
        def over_samples(self, window: Window) -> Fraction:
            return Fraction(2**-0.5)

    [found] = follow("single-acc2-fp32-momentum", DividedByARoot).judged().suspects.gradient_factors
    assert abs(found**2 - Fraction(1, 2)) < Fraction(1, 2**20)


def test_rounding_is_no_factor(follow):
    class RoundedToSingle(Recurrence):
        def over_samples(self, window: Window) -> Fraction:
            return 1 + Fraction(1, 2**25)

    judgement = follow("single-acc2-fp64-momentum", RoundedToSingle).judged()
    assert (judgement.verdict, judgement.suspects.gradient_factors) == ("FAIL (numerics)", ())


def test_a_factor_that_clipping_hides_is_not_one_number(follow):
    """Where every gradient is brought to a norm, no factor shows."""

    class Rescaled(Recurrence):
        def clip(self, vector: Affine) -> Affine:
            return super().clip(vector.scaled(Fraction(1000)))

    found = follow("single-acc2-fp32-adamw-clip", Rescaled).judged().suspects
    assert len(found.gradient_factors) > 1


def test_a_bound_that_holds_several_factors_shows_none(follow):
    """Half of the weights' gradient, and all of the bias's: inexact factors bound nothing in bf16."""

    class WeightHalved(Recurrence):
        def window_gradient(self, window: Window, weights: Affine) -> Affine:
            right = super().window_gradient(window, weights)
            return self.joined([(right.scaled(Fraction(1, 2)), [0]), (right, [1])])

    found = follow("ddp-w2-acc2-bf16-decay", WeightHalved).judged().suspects
    assert len(found.gradient_factors) != 1


def test_a_fault_that_gradients_alone_would_show_is_not_ruled_out_by_weights(follow):
    """AdamW forgets factors on its gradients."""

    class HalfAsFar(Recurrence):
        def learning_rate(self, step: int, group: int = 0) -> Fraction:
            return super().learning_rate(step, group) / 2

    run = follow("single-acc2-fp32-adamw", HalfAsFar)
    assert "sum-over-window" in run.judged().suspects.ruled_out
    for step in run.of("step"):
        step["gradients"] = None
    assert "sum-over-window" not in run.judged().suspects.ruled_out


def test_a_bound_that_holds_the_right_answer_too_explains_nothing(follow, monkeypatch):
    """However wide it is: then every wrong number lies in it."""

    def widened(self, vector: Affine) -> Affine:
        return vector.widen([Fraction(2**100)] * len(vector))

    run = follow("single-acc2-fp32-clip-value")
    run.of("step")[2]["gradients"][0] += 0.37
    run.of("step")[2]["weights"][0] += 0.37
    monkeypatch.setattr(NotClipped, "clip", widened)
    found = run.judged().suspects
    assert "not-clipped" not in (*found.explained_by, *found.ruled_out)


def test_nothing_explains_nonsense(follow):
    run = follow("single-acc2-fp32-sgd")
    run.of("step")[2]["gradients"][0] += 0.37
    run.of("step")[2]["weights"][0] += 0.37
    judgement = run.judged()
    assert (judgement.verdict, judgement.suspects.explained_by) == ("FAIL (numerics)", ())
    assert (judgement.suspects.gradient_factors, judgement.suspects.step_factors) == ((), ())


def test_the_rank_that_is_wrong_is_looked_at(follow):
    run, wrong = follow("ddp-w2-acc3-fp32-momentum"), follow("ddp-w2-acc3-fp32-momentum", SumOverWindow)
    run.ranks[1] = wrong.ranks[1]
    judgement = run.expect("DIVERGED")
    assert judgement.suspects.explained_by == ("sum-over-window",)


def test_a_pass_within_bounds_rules_out_no_fault_that_bounds_need_not_exclude(follow):
    exact, bounded = (follow(f"single-acc2-fp32-{name}").judged() for name in ("fine-gradients", "clip-norm"))
    assert (exact.verdict, bounded.verdict) == ("PASS (exact)", "PASS (bounded)")
    assert "momentum-in-bfloat16" in exact.suspects.ruled_out
    assert "momentum-in-bfloat16" not in bounded.suspects.ruled_out


def test_what_hides_factors_names_no_fault():
    assert Suspects(("not-clipped",)).names_one
    assert not Suspects(("not-clipped",), gradient_factors=(Fraction(1), Fraction(2))).names_one


def test_pairs_of_bugs_that_show_before_the_first_difference_are_not_tried(follow, monkeypatch):
    """Each trial takes the steps up to its first wrong one, and there are thousands of pairs."""

    class OddLate(Recurrence):
        def window_gradient(self, window, weights):
            vector = super().window_gradient(window, weights)
            odd = vector.where([number % 2 == 0 for number in range(len(vector))])
            return vector.plus(odd.scaled(Fraction(1, 8))) if window.index == 3 else vector

    run, tried, halves = follow("single-acc2-fp32-many-tensors", OddLate), [], Recurrence.halves
    monkeypatch.setattr(Recurrence, "halves", lambda self, limit=None: tried.append(self) or halves(self, limit))
    found = run.judged()
    assert (found.difference.step, found.suspects.explained_by) == (3, ())
    textbooks = [{fault.textbook for fault in CATALOGUE}.intersection(type(one).__bases__) for one in tried]
    assert {SumOverWindow} in textbooks
    assert not any(SumOverWindow in both for both in textbooks if len(both) == 2)
