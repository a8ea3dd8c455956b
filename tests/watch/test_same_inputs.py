"""Micro-batches that are one and the same compute one gradient several times."""

import pytest

from conformance.watch import records

from .scripts import LINE, Script, total

PASSES, STEPS = 3, 5


@pytest.mark.parametrize(
    ("rows_of", "draws", "told"),
    [
        (lambda step, number: [10 * step, 10 * step + 1], False, True),
        (lambda step, number: [10 * step, 10 * step + 1], True, False),  # as with dropout
        (lambda step, number: [10 * step, number], False, False),
        (lambda step, number: [10 * step, min(number, 1)], False, False),
        (lambda step, number: [1, 2], False, False),  # one batch for all, as in a first try
    ],
)
def test_a_window_of_the_same_inputs(rows_of, draws, told):
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
        script.step([total(computed)])
        script.clear()
    findings = script.findings()
    assert not findings.causes
    assert any("has the same inputs, and gives the same gradients" in why for why in findings.open) == told
