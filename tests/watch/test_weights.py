"""Weights that differ between ranks, or change between steps."""

import pytest
import torch

from conformance.watch import records
from conformance.watch.verdict import verdict

from .scripts import Script, averaged, gradients, laws
from .trained import loss, network, records_in


def test_ranks_with_different_weights_and_equal_gradients_have_averaged():
    """Also if a model without an optimizer has gradients, and each rank may train the other alone."""
    script = Script(drift=0.1)
    script.each(records.Unheld(["base"], [[3, 3]]))
    for _ in range(3):
        script.backward()
        script.step([gradients(5 + script.steps)] * 2)
        script.clear()
    assert laws(script.findings()) == {"watch/same-weights"}


@pytest.mark.parametrize(("is_elsewhere", "expected"), [(True, "UNDECIDED"), (False, "DOES NOT CONFORM")])
def test_ranks_may_mix_their_weights_between_steps(is_elsewhere, expected):
    """For example, they average some of the weights from time to time, or move halfway to those of a neighbor."""
    script = Script(drift=0.1)
    for window in range(5):
        script.step(script.backward())
        for stream in script.streams:
            assert isinstance(stream[-1], records.Stepped)
            stream[-1].is_elsewhere = is_elsewhere and window % 2 == 1
        script.clear()
    assert verdict(script.findings()) == expected


@pytest.mark.parametrize("of", [(), (0,), (0, 1)])
def test_changes_of_weights_between_steps_are_a_fact(of):
    script = Script()
    for step in range(4):
        script.step(averaged(script.backward()))
        for rank in of if step == 2 else ():
            script.streams[rank][-1].is_elsewhere = True
        script.clear()
    findings = script.findings()
    assert (findings.causes, [*findings.open]) == ({}, ["agreement.between"] * bool(of))


@pytest.mark.parametrize("trains", [True, False])
def test_frozen_weights_may_change_without_steps(trains, tmp_path):
    """A momentum encoder's weights do. Weights that are frozen from time to time, as in a GAN, are trained."""
    model, other = network(), network()
    with records_in(tmp_path) as found:
        optimizer = torch.optim.SGD([*model.parameters(), *other.parameters()], lr=0.1)
        for _ in range(4):
            other.requires_grad_(trains)
            (loss(model) + loss(other)).backward()
            other.requires_grad_(requires_grad=False)
            with torch.no_grad():
                for one in other.parameters():
                    one.mul_(0.9)
            optimizer.zero_grad()
            loss(model).backward()
            optimizer.step()
    passes = [one.versions["0"] for one in found if isinstance(one, records.Backward)]
    assert [second > first for first, second in zip(passes[::2], passes[1::2], strict=True)] == [trains] * 4
    steps = [one.is_elsewhere for one in found if isinstance(one, records.Stepped)]
    assert [bool(one) for one in steps] == [False, *[trains] * 3]
    assert [one.moved for one in found if isinstance(one, records.Cleared)] == [False] * 4
