"""Losses that count half, or nothing, beside those that are divided by too much."""

import pytest

from conformance.watch.verdict import verdict

from .scripts import Script, total

ENTROPY, SQUARES = "NllLossBackward0", "MseLossBackward0"


def judged(used, factors, counts, made_by=ENTROPY):
    """Two ranks sum up losses over `counts` targets, and multiply them with `factors`. used: what the step multiplies
    the mean over the ranks with, of the targets of all."""
    script = Script()
    for step in range(4):
        of_step = [count + step * rank for rank, count in enumerate(counts)]
        own = factors(sum(of_step))
        computed = script.backward(factors=own)
        for stream, count in zip(script.streams, of_step, strict=True):
            stream[-2].summed, stream[-2].made_by = count, made_by
        script.step([total(computed, 0.5 * used(sum(of_step)))] * 2)
        script.clear()
    return script.findings()


def laws(findings):
    return {law for law, _ in findings.causes}


@pytest.mark.parametrize(
    ("used", "made_by", "counts", "expected"),
    [
        (lambda count: 2 / count, ENTROPY, (8, 9), "CONFORMS"),
        (lambda count: 1 / count, ENTROPY, (8, 9), "DOES NOT CONFORM"),
        (lambda count: 1 / count, SQUARES, (8, 9), "UNDECIDED"),  # half of a squared error
        (lambda count: 1 / (3 * count), ENTROPY, (8, 9), "UNDECIDED"),
    ],
)
def test_gradients_of_sums_are_divided(used, made_by, counts, expected):
    findings = judged(used, lambda count: [], counts, made_by)
    assert verdict(findings) == expected
    assert laws(findings) == ({"watch/averaged-once"} if expected == "DOES NOT CONFORM" else set())


@pytest.mark.parametrize(
    ("factors", "expected"),
    [
        (lambda count: [1 / count], {"watch/averaged-once"}),
        (lambda count: [2.0, 1 / count], set()),
        (lambda count: [0.5, 2.0, 1 / count], set()),  # half of a loss
    ],
)
def test_sums_are_divided_by_all_targets(factors, expected):
    assert laws(judged(lambda count: 1, factors, (8, 9))) == expected


def test_a_batch_that_is_made_up_counts_nothing():
    script = Script()
    for step in range(4):
        first = script.backward(factors=[0.0])
        rest = script.backward(factors=[1.0])
        for stream in script.streams:
            stream[-4].summed, stream[-2].summed = 5, 7 + step
        zeros = total(first, 0.0)
        for stream in script.streams:
            stream[-3].sketches = [[0.0] * 3 for _ in script.numbers]
        script.step([total([zeros, total(rest, 1 / (14 + 2 * step))])] * 2)
        script.clear()
    findings = script.findings()
    assert (verdict(findings), findings.causes) == ("CONFORMS", {})


@pytest.mark.parametrize(("scale", "divisor"), [(2.0, 2.0), (4.0, 4.0)])
def test_a_loss_scale_by_hand_that_is_the_number_of_ranks(scale, divisor):
    script = Script()
    for _ in range(4):
        computed = [total([of_rank], scale) for of_rank in script.backward(factors=[scale], targets=6)]
        for stream in script.streams:
            stream[-1].sketches = [[scale * number for number in row] for row in stream[-1].sketches]
        script.step([total(computed, 0.5 / divisor)] * 2)
        script.clear()
    assert verdict(script.findings()) == "CONFORMS"
