"""Weights that differ between ranks, or change between steps."""

import pytest

from conformance.watch import records
from conformance.watch.verdict import verdict

from .scripts import Script, averaged, gradients, laws


def test_ranks_with_different_weights_that_use_one_gradient_have_averaged():
    """A body by hand, which no hook sees, beside a head that each rank trains alone."""
    script = Script(drift=0.1)
    script.each(records.Unheld(["base"], [[3, 3]]))
    for _ in range(3):
        script.backward()
        script.step([gradients(5 + script.steps)] * 2)
        script.clear()
    assert laws(script.findings()) == {"watch/same-weights"}


@pytest.mark.parametrize(("is_elsewhere", "expected"), [(True, "UNDECIDED"), (False, "DOES NOT CONFORM")])
def test_ranks_that_change_their_weights_between_steps_may_meet(is_elsewhere, expected):
    """As they do who average some of the weights now and then, or go halfway to those of a neighbour."""
    script = Script(drift=0.1)
    for window in range(5):
        script.step(script.backward())
        for stream in script.streams:
            assert isinstance(stream[-1], records.Stepped)
            stream[-1].is_elsewhere = is_elsewhere and window % 2 == 1
        script.clear()
    assert verdict(script.findings()) == expected


@pytest.mark.parametrize("of", [(), (0,), (0, 1)])
def test_weights_that_one_of_several_ranks_changes_are_a_fact(of):
    script = Script()
    for step in range(4):
        script.step(averaged(script.backward()))
        for rank in of if step == 2 else ():
            script.streams[rank][-1].is_elsewhere = True
        script.clear()
    findings = script.findings()
    assert (findings.causes, [*findings.open]) == ({}, ["agreement.between"] * bool(of))
