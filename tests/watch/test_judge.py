"""What a judge finds in made-up streams of right and wrong scripts."""

import pytest

from conformance.watch import records
from conformance.watch.judging import clearing
from conformance.watch.judging.findings import said
from conformance.watch.judging.judge import judged
from conformance.watch.verdict import verdict

from .scripts import LINE, Script, sketches, total


def averaged(computed, factor=0.5):
    """computed: for each backward, the gradients of each rank. The same on both ranks."""
    return [total([of_rank for backward in computed for of_rank in backward], factor)] * 2


def laws(findings):
    return {law for law, _ in findings.causes}


def test_the_average_of_all_conforms():
    script = Script()
    for _ in range(3):
        script.step(averaged([script.backward(), script.backward()]))
        script.clear()
    findings = script.findings()
    assert (verdict(findings), findings.steps, findings.conserved) == ("CONFORMS", 6, 6)


def test_nothing_seen_is_undecided():
    assert verdict(Script().findings()) == "UNDECIDED"


def test_the_factors_that_a_script_may_have():
    script = Script()
    computed = [script.backward(scale=1024.0)]
    script.each(records.Unscaled(0, 1024.0, LINE))
    script.each(records.Clipped("norm", script.numbers, 1.0, 4.0, len(script.numbers), LINE))
    script.step(averaged(computed, 0.5 / 1024 * 1 / (4 + 1e-6)))
    assert verdict(script.findings()) == "CONFORMS"


@pytest.mark.parametrize(("drift", "broken"), [(0.1, {"watch/averaged", "watch/same-weights"}), (0.0, set())])
def test_own_gradients_alone_are_wrong_where_weights_drift_apart(drift, broken):
    script = Script(drift=drift)
    for _ in range(3):
        script.step(script.backward())
        script.clear()
    findings = script.findings()
    assert laws(findings) == broken
    assert verdict(findings) == ("DOES NOT CONFORM" if broken else "UNDECIDED")


@pytest.mark.parametrize(
    ("drift", "expected"), [(1e-5, "watch/same-weights"), (1e-7, "agreement.rounding"), (0.0, None)]
)
def test_weights_may_differ_by_rounding(drift, expected):
    """As where each rank adds noise of its own to its weights, and takes it away again."""
    script = Script(drift=drift)
    for _ in range(2):
        script.step(averaged([script.backward()]))
        script.clear()
    findings = script.findings()
    assert [*laws(findings), *findings.open] == [expected] * (expected is not None)


def test_a_micro_batch_that_is_missing_is_named():
    script = Script()
    first, second = script.backward(), script.backward()
    script.step([total([first[rank], total(second, 0.5)]) for rank in (0, 1)])
    findings = script.findings()
    [cause] = findings.causes.values()
    table = "rank 0: 1, 0.5; rank 1: 0, 0.5"
    assert (cause.first.law, cause.first.says) == ("watch/averaged", said("micro-batches-own", places=[1], table=table))


def test_a_model_of_one_parameter_is_diagnosed_over_several_steps():
    """Only the first of four micro-batches is averaged: eight unknowns, and two equations a step."""
    script = Script(shapes=((4, 3),), drift=0.1)
    for _ in range(6):
        computed = [script.backward() for _ in range(4)]
        first = total(computed[0], 0.5)
        script.step([total([first, *(of[rank] for of in computed[1:])]) for rank in (0, 1)])
        script.clear()
    causes = {law: cause.first.says for (law, _), cause in script.findings().causes.items()}
    table = "rank 0: 0.5, 1, 1, 1; rank 1: 0.5, 0, 0, 0"
    assert causes["watch/averaged"] == said("micro-batches-own", places=[2, 3, 4], table=table)


@pytest.mark.parametrize(("drift", "broken"), [(0.1, {"watch/averaged", "watch/same-weights"}), (0.0, set())])
def test_one_parameter_that_is_not_averaged(drift, broken):
    """Its weights drift apart; if they did not, something else would have averaged it."""
    script = Script(drift=drift)
    for _ in range(2):
        computed = script.backward()
        used = averaged([computed])
        script.step([[*used[rank][:-1], computed[rank][-1]] for rank in (0, 1)])
        script.clear()
    findings = script.findings()
    assert laws(findings) == broken
    says = [cause.first.says for (law, _), cause in findings.causes.items() if law == "watch/averaged"]
    assert [(one.code, one.values["parameters"], one.values["all"]) for one in says] == (
        [("some-not-averaged", 1, 6)] if broken else []
    )


def test_gradients_that_were_not_cleared():
    script = Script()
    first = averaged([script.backward()])
    script.step(first)
    second = averaged([script.backward()])
    script.step([total([first[0], second[0]])] * 2)
    assert laws(script.findings()) == {"watch/cleared"}


@pytest.mark.parametrize(("kept", "broken"), [(True, {"watch/cleared"}), (False, set())])
def test_what_a_window_that_is_not_looked_at_leaves_over(kept, broken):
    script = Script()
    first = averaged([script.backward()])
    script.step(first)
    script.clear()
    left = [gradient * 3 for gradient in first[0]]
    script.each(records.Passed(0))
    held = left if kept else []
    script.each(records.Left(script.numbers, script.numbers if kept else [], "float32", sketches(held)))
    second = averaged([script.backward()])
    script.step([total([left, second[0]])] * 2 if kept else second)
    findings = script.findings()
    assert (laws(findings), findings.steps) == (broken, 4)


def test_a_second_step_without_a_backward():
    script = Script()
    used = averaged([script.backward()])
    script.step(used)
    script.step(used)
    assert laws(script.findings()) == {"watch/fresh"}


@pytest.mark.parametrize("power", [1, -1])
def test_the_loss_scale_is_divided_out_once(power):
    script = Script()
    script.step(averaged([script.backward(scale=256.0)], 0.5 / 256 * 256.0**power))
    assert laws(script.findings()) == {"watch/unscaled"}


@pytest.mark.parametrize(("is_own", "expected"), [(False, "watch/unscaled"), (True, "loss-scale.own-optimizer")])
def test_an_optimizer_of_the_scripts_own_may_take_signs(is_own, expected):
    script = Script()
    script.step(averaged([script.backward(scale=256.0)]))
    for stream in script.streams:
        stream[-1].is_own = is_own
    findings = script.findings()
    assert [*laws(findings), *findings.open] == [expected]


def test_changes_by_hand_are_open():
    script = Script()
    used = averaged([script.backward()])
    script.step([[gradient.clamp(-0.3, 0.3) for gradient in used[0]]] * 2)
    findings = script.findings()
    assert (verdict(findings), findings.causes) == ("UNDECIDED", {})


@pytest.mark.parametrize("kept", [2, 1000])
def test_backward_passes_that_are_cleared(kept, monkeypatch):
    """However few of them are kept until the next step."""
    monkeypatch.setattr(clearing, "_MOST", kept)
    script = Script(ranks=1)
    for _ in range(9):
        script.backward(loader=7)
        script.clear()
        script.step(script.backward(loader=7))
        script.clear()
    findings = script.findings()
    assert laws(findings) == {"watch/used"}
    [cause] = findings.causes.values()
    assert cause.count == 9


def test_a_step_that_the_end_of_the_script_cut_off_is_not_judged():
    script = Script()
    used = averaged([script.backward()])
    script.step(used)
    script.clear()
    script.step(averaged([script.backward()]), ranks=[0])
    findings = judged(script.streams, is_whole=False)
    assert (findings.causes, findings.steps, findings.conserved) == ({}, 2, 2)


def test_learning_rates_of_the_ranks():
    script = Script()
    used = averaged([script.backward()])
    script.step(used, ranks=[0], rate=0.1)
    script.step(used, ranks=[1], rate=0.2)
    assert "watch/same-rates" in laws(script.findings())


@pytest.mark.parametrize("offset", [0.0, 1.0])
@pytest.mark.parametrize(("frozen", "code"), [(0, "agreement.buffers"), (1, "agreement.frozen")])
def test_buffers_that_differ_between_ranks_are_reported(offset, frozen, code):
    script = Script()
    for rank, stream in enumerate(script.streams):
        values = [1.0, 2.0, 3.0, 4.0 + rank * offset, 5.0, 6.0]
        stream.append(records.Buffers(["mean", "bn.running_var"], values, frozen))
    script.step([total(script.backward(), 0.5)] * 2)
    findings = script.findings()
    fact = said(code, apart=1, all=frozen or 2, names=["bn.running_var"])
    assert [one.says for one in findings.open.values()] == ([fact] if offset else [])
    assert findings.conserved == 2


def test_what_shows_first_comes_first():
    """Weights are apart from the second step on, as each rank follows its own gradients in the first."""
    script = Script(drift=0.1)
    for _ in range(3):
        script.step([total([of_rank]) for of_rank in script.backward()])
        script.clear()
    causes = script.findings().causes.values()
    assert [(one.first.step, one.first.law) for one in causes] == [(0, "watch/averaged"), (1, "watch/same-weights")]
