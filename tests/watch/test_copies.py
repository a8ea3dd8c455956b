"""Optimizers that step copies of a model's parameters, in small scripts of right and wrong styles."""

from contextlib import suppress

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import conformance


def never(model, copies, step):
    pass


def each_time(model, copies, step):
    for parameter, copy in zip(model.parameters(), copies, strict=True):
        parameter.data.copy_(copy)


def now_and_then(model, copies, step):
    if step == 20:
        each_time(model, copies, step)


def said(returns, steps=28, start=1.0):
    """start: what the copies are of the parameters at first."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 1))
    copies = [nn.Parameter(start * parameter.detach()) for parameter in model.parameters()]
    with suppress(AssertionError), conformance.watching() as findings:
        optimizer = torch.optim.SGD(copies, lr=0.1)
        for step in range(steps):
            model(torch.randn(8, 6)).square().mean().backward()
            for parameter, copy in zip(model.parameters(), copies, strict=True):
                copy.grad, parameter.grad = parameter.grad, None
            optimizer.step()
            returns(model, copies, step)
    return [cause.first.says for cause in findings.causes.values()]


@pytest.mark.parametrize(("returns", "expected"), [(never, True), (each_time, False), (now_and_then, False)])
def test_what_is_never_given_back(returns, expected):
    assert any("copies of parameters" in says for says in said(returns)) == expected


def test_what_is_no_copy_is_not_to_be_given_back():
    """It may be how far to go from the weights, in a model that is linear around them."""
    assert not any("copies of parameters" in says for says in said(never, start=0.0))


def test_a_few_steps_prove_nothing():
    assert not said(never, steps=12)


def test_models_without_values_are_only_walked_through():
    model, on_meta, mode = nn.Linear(6, 1), nn.Linear(6, 1, device="meta"), FakeTensorMode()
    with mode:
        fake = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with suppress(AssertionError), conformance.watching() as findings:
        for _ in range(10):
            model(torch.randn(8, 6)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            on_meta(torch.randn(8, 6, device="meta")).sum().backward()
            with mode:
                fake(torch.randn(8, 6)).sum().backward()
    assert not any("recorder failed" in why for why in findings.open)
