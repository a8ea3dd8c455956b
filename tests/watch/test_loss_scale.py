"""Loss scales: wrong scripts, and correct ones that look similar."""

import pytest

from conformance.watch import records
from conformance.watch.judging.properties import Property

from .scripts import LINE, Script, laws, total


@pytest.mark.parametrize(("scales", "broken"), [((8.0, 4.0, 2.0, 2.0), set()), ((8.0, 8.0), {"watch/unscaled"})])
def test_a_scale_may_shrink_to_the_number_of_micro_batches(scales, broken):
    """A division by this number is no second division by the scale."""
    script = Script(ranks=1)
    for scale in scales:
        computed = [script.backward(scale, factors=[scale]) for _ in range(2)]
        by = scale * scale if broken else 2 * scale
        script.step([total([of_rank for [of_rank] in computed], 1 / by)])
        script.clear()
    assert laws(script.findings()) == broken


@pytest.mark.parametrize(
    ("scales", "divisors", "broken"),
    [
        ([16, 16, 32, 32, 64], [16, 32, 32, 64, 64], {"watch/unscaled"}),
        ([16, 16, 32, 32, 64], [16, 16, 32, 32, 64], set()),
        ([16, 16, 32, 32, 64], [32] * 5, set()),  # one constant of the script
        ([16, 16, 32, 32, 64], [16, 48, 32, 48, 64], set()),
    ],
)
def test_a_division_by_the_next_scale(scales, divisors, broken):
    script = Script(ranks=1)
    for scale, divisor in zip(scales, divisors, strict=True):
        [computed] = script.backward(factors=[float(scale)])
        script.step([total([computed], 1 / divisor)])
        script.clear()
    assert laws(script.findings()) == broken


def clipped(limit, scales, *, how="norm", norm=1e9, unscales="after"):
    """Clips each window at a limit, a function of its scale. norm: of what is clipped. unscales: before or after it."""
    script = Script(ranks=1)
    for scale in scales:
        [computed] = script.backward(scale)
        clip = records.Clipped(
            how, script.numbers, limit(scale), norm if how == "norm" else None, len(script.numbers), LINE
        )
        unscaled = records.Unscaled(0, scale, LINE)
        for record in (clip, unscaled) if unscales == "after" else (unscaled, clip):
            script.each(record)
        script.step([total([computed], 1 / scale)])
        script.clear()
    return script.findings()


@pytest.mark.parametrize("how", ["norm", "value"])
@pytest.mark.parametrize(
    ("limit", "scales", "unscales", "expected"),
    [
        (lambda scale: 2.0, [64.0], "after", "written"),
        (lambda scale: 2.0, [64.0], "before", None),
        (lambda scale: 5.0, [32.0], "after", "written"),
        (lambda scale: 50.0, [64.0], "after", None),  # 0.8 times the scale
        (lambda scale: 0.5672, [64.0], "after", "open"),
        (lambda scale: 0.5672, [64.0] * 3 + [128.0] * 3, "after", "open"),
    ],
)
def test_a_clip_before_gradients_are_unscaled(how, limit, scales, unscales, expected):
    findings = clipped(limit, scales, how=how, unscales=unscales)
    wrong = [("watch/unscale-before-clip", f"clipping.scaled-{how}", 0)] if expected == "written" else []
    assert [(one.first.law, one.first.says.code, one.first.step) for one in findings.causes.values()] == wrong
    facts = {code: (one.count, one.step) for code, one in findings.open.items() if "scaled" in code}
    assert facts == ({f"clipping.scaled-{how}": (len(scales), 0)} if expected == "open" else {})


@pytest.mark.parametrize(("norm", "is_scaled"), [(1e9, True), (1e-9, False)])
def test_gradients_that_the_script_divided_itself_are_clipped_unscaled(norm, is_scaled):
    """Also if a scaler divides them again."""
    broken = laws(clipped(lambda scale: 2.0, [64.0], norm=norm))
    assert broken == ({"watch/unscale-before-clip"} if is_scaled else set())


def test_the_effect_of_clipping_scaled_gradients():
    script = Script(ranks=1)
    computed = script.backward(1024.0)
    script.each(records.Clipped("norm", script.numbers, 1.0, 512.0, len(script.numbers), LINE))
    script.each(records.Unscaled(0, 1024.0, LINE))
    script.step([total(computed)])
    effect = script.findings().causes["watch/unscale-before-clip", str(LINE)].first.effect
    # Multiplied by 1/512, though the unscaled norm of 0.5 is below the limit.
    assert (effect.code, effect.values["left"]) == ("clip.left.effect", pytest.approx(1 / 512))


@pytest.mark.parametrize(
    ("scale", "factors", "divides_by", "expected"),
    [
        (64.0, [], 64.0, 6),
        (None, [64.0], 64.0, 6),  # a hand-written scale
        (64.0, [], 16.0, 0),
        (None, [64.0], 1.0, 0),
        (1.0, [], 1.0, 0),
        (None, [1.01], 1.0, 0),  # the weight of a loss
        (2.0, [], 1.0, 0),  # a scale that was left in, equal to the number of ranks
    ],
)
def test_steps_that_undo_exactly_their_scale_are_counted(scale, factors, divides_by, expected):
    script = Script(ranks=2)
    for _ in range(3):
        computed = script.backward(scale, factors=factors)
        script.step([total(computed, 1 / (2 * divides_by))] * 2)
        script.clear()
    assert script.findings().seen[Property.LOSS_SCALE] == expected
