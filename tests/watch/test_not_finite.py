"""Weights that are infinite or NaN: nothing can be judged of them, and they may be the same on all ranks."""

import math

import pytest

from conformance.watch.verdict import verdict

from .scripts import Script, total


@pytest.mark.parametrize(
    ("broken", "laws"), [((), set()), ((0, 1), set()), ((1,), {"watch/same-weights"}), ((0,), {"watch/same-weights"})]
)
def test_weights_that_are_nan_on_these_ranks(broken, laws):
    script = Script()
    for step in range(4):
        script.step([total(script.backward(), 1 / 2)] * 2)
        for rank in broken if step > 1 else ():
            stepped = script.streams[rank][-1]
            stepped.values = [[math.nan] * 3, *stepped.values[1:]]
        script.clear()
    findings = script.findings()
    assert {law for law, _ in findings.causes} == laws
    assert ("changed.weights" in findings.open) == bool(broken)
    assert verdict(findings) == ("DOES NOT CONFORM" if laws else "UNDECIDED" if broken else "CONFORMS")
