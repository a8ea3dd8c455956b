"""Factors that a script must not use: of one rank alone, or twice."""

import pytest

from conformance.watch import records
from conformance.watch.verdict import verdict

from .scripts import LINE, Script, total


def laws(script):
    return {law for law, _ in script.findings().causes}


def test_each_rank_clips_before_the_average():
    script = Script()
    computed = script.backward()
    for stream, norm in zip(script.streams, (4.0, 8.0), strict=True):
        stream.append(records.Clipped("norm", script.numbers, 1.0, norm, len(script.numbers), LINE))
    clipped = [total([computed[0]], 1 / (4 + 1e-6)), total([computed[1]], 1 / (8 + 1e-6))]
    script.step([total(clipped, 0.5)] * 2)
    assert laws(script) == {"watch/one-factor"}


def test_one_rank_uses_less_of_the_sum():
    script = Script()
    computed = script.backward()
    script.step([total(computed, 0.5), total(computed, 0.2)])
    assert laws(script) == {"watch/one-factor"}


@pytest.mark.parametrize(("factor", "expected"), [(0.25, "DOES NOT CONFORM"), (1.0, "CONFORMS")])
def test_losses_and_their_sum_are_divided(factor, expected):
    script = Script(ranks=1)
    computed = [script.backward(factors=[factor]) for _ in range(4)]
    script.step([total([of_rank for [of_rank] in computed], 0.25)])
    assert verdict(script.findings()) == expected


def test_a_loss_that_goes_backward_again():
    script = Script(ranks=1)
    computed = [script.backward(), script.backward()]
    [last] = [one for one in script.streams[0] if isinstance(one, records.Backward) and one.backward == 2]
    last.contains = True
    script.step([total([of_rank for [of_rank] in computed])])
    assert laws(script) == {"watch/backward-once"}


@pytest.mark.parametrize(("limit", "broken"), [(1.0, {"watch/unscale-before-clip"}), (1024.0, set())])
def test_scaled_gradients_are_clipped(limit, broken):
    """Which is right at a limit that is scaled as they are."""
    script = Script(ranks=1)
    for _ in range(3):
        [computed] = script.backward(scale=1024.0)
        script.each(records.Clipped("norm", script.numbers, limit, 2 * limit, len(script.numbers), LINE))
        script.each(records.Unscaled(0, 1024.0, LINE))
        script.step([total([computed], limit / (2 * limit + 1e-6) / 1024)])
        script.clear()
    assert laws(script) == broken


@pytest.mark.parametrize(("limit", "broken"), [(1.0, {"watch/clip-whole-window"}), (1e9, set())])
def test_a_clip_between_two_backward_passes_may_measure_the_norm(limit, broken):
    script = Script(ranks=1)
    for _ in range(3):
        [first] = script.backward()
        script.each(records.Clipped("norm", script.numbers, limit, 4.0, len(script.numbers), LINE))
        [second] = script.backward()
        script.step([total([total([first], min(1.0, limit / (4.0 + 1e-6))), second])])
        script.clear()
    assert laws(script) & {"watch/clip-whole-window"} == broken


def test_a_rank_without_data_has_no_loss_scale():
    script = Script()
    script.step([total(script.backward(), 0.5)] * 2)
    script.clear()
    computed = script.backward()
    del script.streams[1][-2:]
    script.step([total(computed[:1], 0.5)] * 2)
    assert "watch/one-scale" not in laws(script)


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        (1 / 256, {"watch/unscale-whole-window"}),  # unscaled by hand, and again with the whole window
        (1 / 250, set()),  # a weight of the script's own
        (1 / 16, set()),
    ],
)
def test_a_micro_batch_that_is_divided_by_the_loss_scale_once_more(first, expected):
    script = Script(ranks=1)
    for _ in range(4):
        [one], [other] = script.backward(scale=256.0), script.backward(scale=256.0)
        script.each(records.Unscaled(0, 256.0, LINE))
        script.step([total([total([one], first / 256), total([other], 1 / 256)])])
        script.clear()
    assert laws(script) == expected


@pytest.mark.parametrize(
    ("makes_up", "fused", "expected"),
    [
        (1.0, False, {"watch/unscaled"}),
        (1.0, True, {"watch/unscaled"}),
        (2.0, False, set()),  # the script knows
        (0.7, False, set()),  # a number of its own
    ],
)
def test_a_scale_that_grows_before_the_gradients_of_another_optimizer_are_divided(makes_up, fused, expected):
    script = Script(ranks=1)
    [computed] = script.backward(scale=256.0)
    if not fused:
        script.each(records.Unscaled(0, 512.0, LINE))
    script.step([total([computed], makes_up if fused else makes_up / 512)])
    script.streams[0][-1].grad_scale = 512.0 if fused else None
    assert laws(script) == expected
