"""Gradients that a step leaves are forgotten by mistake as they are, and on purpose where the script changes them."""

from contextlib import suppress

import pytest
import torch

import conformance
from conformance.watch.recording.parameters import WHOLE_AT_FIRST
from conformance.watch.verdict import verdict


def findings_of(leave):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(20, 512), torch.nn.Tanh(), torch.nn.Linear(512, 44))
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    with suppress(AssertionError), conformance.watching() as findings:
        for _ in range(WHOLE_AT_FIRST + 4):
            model(torch.randn(4, 20)).square().mean().backward()
            optimizer.step()
            for parameter in model.parameters():
                leave(parameter)
    return findings


@pytest.mark.parametrize(
    "leave",
    [lambda one: one.grad.mul_(0.9), lambda one: setattr(one, "grad", one.grad * 0.9)],
    ids=["in-place", "anew"],
)
def test_what_the_script_decays_is_meant_to_stay(leave):
    findings = findings_of(leave)
    assert (verdict(findings), findings.causes) == ("UNDECIDED", {})
    assert "clearing.kept" in findings.open


def test_what_nobody_touches_was_forgotten():
    assert {law for law, *_ in findings_of(lambda one: None).causes} == {"watch/cleared"}
