"""Optimizers that never step what gets gradients, and losses of a validation that stay in `.grad`."""

from contextlib import suppress

import pytest
import torch
from torch import nn

import conformance


def open_of(trains):
    torch.manual_seed(0)
    body, head = nn.Sequential(nn.Linear(6, 5), nn.Tanh()), nn.Linear(5, 1)
    with suppress(AssertionError), conformance.watching() as findings:
        trains(body, head)
    assert not findings.causes
    return {*findings.open}


def validates(before, each=5):
    """before: whether it comes before the pass of its step, or after it."""

    def trains(body, head):
        model = nn.Sequential(body, head)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def validate(step):
            if step % each == 0:
                model.eval()
                model(torch.ones(4, 6)).square().mean().backward()
                model.train()

        for step in range(20):
            optimizer.zero_grad()
            if before:
                validate(step)
            model(torch.randn(8, 6)).square().mean().backward()
            if not before:
                validate(step)
            optimizer.step()

    return trains


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize(("each", "expected"), [(5, True), (1, False)])
def test_a_validation_that_goes_backward(before, each, expected):
    assert ("clearing.other-passes" in open_of(validates(before, each))) == expected
