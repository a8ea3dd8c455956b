"""What happens between steps and should not be in them: other backward passes, and steps before a backward pass."""

from contextlib import nullcontext, suppress

import pytest
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

import conformance


def measured(model, batch, optimizer):
    loss = model(batch).square().mean()
    loss.backward()
    model(batch)
    optimizer.step()


def ahead(model, batch, optimizer):
    loss = model(batch).square().mean()
    optimizer.step()
    optimizer.zero_grad()
    loss.backward()


def kept():
    return saved_tensors_hooks(lambda saved: saved, lambda saved: saved)


@pytest.mark.parametrize(("train", "within", "is_late"), [(measured, nullcontext, False), (ahead, kept, True)])
def test_a_step_between_a_forward_and_its_backward_pass(train, within, is_late):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with suppress(AssertionError), within(), conformance.watching() as findings:
        model(torch.randn(8, 6)).square().mean().backward()
        for _ in range(4):
            train(model, torch.randn(8, 6), optimizer)
        optimizer.step()
    assert ("clearing.late" in findings.open) == is_late
