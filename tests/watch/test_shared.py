"""Parameters that two optimizers step, each beside others of its own."""

from contextlib import suppress

import pytest
import torch
from torch import nn

import conformance
from conformance.watch.verdict import verdict


def clear(optimizers):
    for optimizer in optimizers:
        optimizer.zero_grad()


def fill_with_zeros(optimizers):
    for optimizer in optimizers:
        for parameter in optimizer.param_groups[0]["params"]:
            if parameter.grad is not None:
                parameter.grad.zero_()


def watched(*, clears=lambda step: True, clear=clear, backward_between=False, shares=True):
    """clears: the steps before which gradients are cleared. backward_between: the second optimizer has a loss of its
    own, and clears before it."""
    torch.manual_seed(0)
    trunk = nn.Linear(6, 16)
    actor = nn.Sequential(trunk, nn.Tanh(), nn.Linear(16, 3))
    critic = nn.Sequential(trunk if shares else nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 5))
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.01) for model in (actor, critic)]
    with suppress(AssertionError), conformance.watching() as findings:
        for step in range(6):
            inputs = torch.randn(8, 6)
            if clears(step):
                clear(optimizers)
            if backward_between:
                actor(inputs).square().mean().backward()
                optimizers[0].step()
                optimizers[1].zero_grad()
                critic(inputs).square().mean().backward()
            else:
                (actor(inputs).square().mean() + critic(inputs).square().mean()).backward()
                optimizers[0].step()
            optimizers[1].step()
    return findings


@pytest.mark.parametrize("clear", [clear, fill_with_zeros])
def test_both_step_along_one_gradient(clear):
    findings = watched(clear=clear)
    assert (verdict(findings), findings.causes) == ("UNDECIDED", {})
    assert {code: one.count for code, one in findings.open.items()} == {"clearing.shared": 6}


@pytest.mark.parametrize("options", [{"shares": False}, {"backward_between": True}])
def test_each_has_a_gradient_of_its_own(options):
    assert verdict(watched(**options)) == "CONFORMS"


@pytest.mark.parametrize("clears", [lambda step: step == 0, lambda step: step % 2 == 0])
def test_what_is_not_cleared_is_no_gradient_of_both(clears):
    assert "watch/cleared" in {law for law, _ in watched(clears=clears).causes}
