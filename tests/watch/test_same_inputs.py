"""Micro-batches that are one and the same compute one gradient several times."""

import pytest

from conformance.watch import records

from .scripts import LINE, Script, total

PASSES, STEPS = 3, 5


@pytest.mark.parametrize(
    ("rows_of", "draws", "size", "told"),
    [
        (lambda step, number: [10 * step, 10 * step + 1], False, 1.0, True),
        (lambda step, number: [10 * step, 10 * step + 1], False, 0.0, False),  # no gradient at all
        (lambda step, number: [10 * step, 10 * step + 1], True, 1.0, False),  # as with dropout
        (lambda step, number: [10 * step, number], False, 1.0, False),
        (lambda step, number: [10 * step, min(number, 1)], False, 1.0, False),
        (lambda step, number: [1, 2], False, 1.0, False),  # one batch for all, as in a first try
    ],
)
def test_a_window_of_the_same_inputs(rows_of, draws, size, told):
    script = Script(ranks=1)
    for step in range(STEPS):
        computed, first = [], None
        for number in range(PASSES):
            script.each(records.Entered(rows_of(step, number), False, LINE))
            computed += script.backward(factors=[1 / PASSES])
            local = script.streams[0][-1]
            first = first or local
            if not draws:
                local.sketches, computed[-1] = first.sketches, computed[0]
            if not size:
                local.sketches = [[0.0] * len(one) for one in local.sketches]
                computed[-1] = total([computed[-1]], size)
        script.step([total(computed)])
        script.clear()
    findings = script.findings()
    assert not findings.causes
    assert any("has the same inputs, and gives the same gradients" in why for why in findings.open) == told
