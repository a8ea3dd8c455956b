"""Parameters that are unfrozen in the course of training, in small scripts of right and wrong styles."""

from contextlib import suppress

import pytest
import torch
from torch import nn

import conformance


def body_and_head():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 1))
    model[0].requires_grad_(False)
    return model, torch.optim.SGD(model[2].parameters(), lr=0.1)


def forgets(model, optimizer, step):
    if step == 3:
        model[0].requires_grad_(True)


def adds(model, optimizer, step):
    if step == 3:
        model[0].requires_grad_(True)
        optimizer.add_param_group({"params": [*model[0].parameters()]})


def by_hand(model, optimizer, step):
    forgets(model, optimizer, step)
    for parameter in model[0].parameters():
        if parameter.grad is not None:
            parameter.data.add_(parameter.grad, alpha=-0.1)
            parameter.grad = None


def looks_now_and_then(model, optimizer, step):
    """At the gradients that it would have."""
    model[0].requires_grad_(step in (4, 8, 16))
    for parameter in model[0].parameters():
        parameter.grad = None


def chooses(model, optimizer, step):
    """Of all that is unfrozen the optimizer is given a part."""
    if step == 3:
        model[0].requires_grad_(True)
        optimizer.add_param_group({"params": [model[0].bias]})


def is_never_frozen(model, optimizer, step):
    model[0].requires_grad_(True)


def said(changes, steps=20):
    model, optimizer = body_and_head()
    if changes is is_never_frozen:
        changes(model, optimizer, 0)
    with suppress(AssertionError), conformance.watching() as findings:
        for step in range(steps):
            changes(model, optimizer, step)
            model(torch.randn(8, 6)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    return [cause.first.says for cause in findings.causes.values()]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (forgets, True),
        (adds, False),
        (chooses, False),
        (by_hand, False),
        (looks_now_and_then, False),
        (is_never_frozen, False),
    ],
)
def test_unfrozen(changes, expected):
    assert any("were unfrozen while others trained" in says for says in said(changes)) == expected


@pytest.mark.parametrize(("until", "expected"), [(20, True), (10, False), (0, False)])
def test_gradients_that_are_taken_away_before_each_step(until, expected):
    """As those of a part of a model that is to stay, or that begins to train later."""
    model, _ = body_and_head()
    model[0].requires_grad_(True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with suppress(AssertionError), conformance.watching() as findings:
        for step in range(20):
            optimizer.zero_grad()
            model(torch.randn(8, 6)).square().mean().backward()
            if step < until:
                model[0].weight.grad = None
            optimizer.step()
    assert any("taken away before each step" in why for why in findings.open) == expected
