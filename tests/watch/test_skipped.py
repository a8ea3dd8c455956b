"""What a step that GradScaler left out leaves behind."""

import pytest

from conformance.watch import records

from .scripts import LINE, Script, sketches, total

INFINITE = float("inf")


def skipped(script, scale=256.0, *, overflows):
    """A window whose step is left out: on rank 1 the first gradients are infinite."""
    computed = script.backward(scale=scale)
    if overflows:
        local = [one for one in script.streams[1] if isinstance(one, records.Local)][-1]
        local.sketches = sketches([gradient * INFINITE for gradient in computed[1]])
    script.each(records.Skipped(0, scale, LINE))
    return computed


def test_what_is_infinite_was_cleared_by_hand():
    script = Script()
    for _ in range(3):
        skipped(script, overflows=True)
        script.step([total(script.backward(scale=256.0), 0.5 / 256)] * 2)
        script.clear()
    findings = script.findings()
    assert (findings.causes, findings.conserved, findings.steps) == ({}, 6, 6)


@pytest.mark.parametrize(("kept", "broken"), [(True, {"watch/cleared"}), (False, set())])
def test_what_is_left_may_be_used(kept, broken):
    script = Script()
    left = skipped(script, overflows=False)
    new = script.backward(scale=256.0)
    script.step([total([*left, *new] if kept else new, 0.5 / 256)] * 2)
    assert {law for law, _ in script.findings().causes} == broken


def test_infinite_gradients_may_be_replaced_by_hand():
    script = Script()
    computed = script.backward()
    local = [one for one in script.streams[1] if isinstance(one, records.Local)][-1]
    local.sketches = sketches([gradient * INFINITE for gradient in computed[1]])
    script.step([total([computed[0]], 0.5)] * 2)
    findings = script.findings()
    assert not findings.causes
    assert "changed.not-finite" in findings.open
