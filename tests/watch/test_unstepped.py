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
    return {**findings.open, **findings.facts}


def each_layer(left_out, passes=12, detaches=False):
    """left_out: those of the layers whose optimizer never steps, or not in the first of the passes."""

    def trains(body, head):
        optimizers = [torch.optim.SGD(one.parameters(), lr=0.1) for one in (body, head)]
        for step in range(passes):
            for optimizer in optimizers:
                optimizer.zero_grad()
            features = body(torch.randn(8, 6))
            head(features.detach() if detaches else features).square().mean().backward()
            for number, optimizer in enumerate(optimizers):
                if number not in left_out(step):
                    optimizer.step()

    return trains


@pytest.mark.parametrize(
    ("trains", "expected"),
    [
        (each_layer(lambda step: (0,)), True),
        (each_layer(lambda step: ()), False),
        (each_layer(lambda step: (step % 2,)), False),  # in turns
        (each_layer(lambda step: (0,) if step < 9 else ()), False),  # the head first
        (each_layer(lambda step: (0,), detaches=True), False),
    ],
)
def test_an_optimizer_that_never_steps(trains, expected):
    assert any("never steps" in why for why in open_of(trains)) == expected


@pytest.mark.parametrize(
    ("trains", "expected"),
    [
        (each_layer(lambda step: (0,) if step > 4 else (), 16), True),
        (each_layer(lambda step: (0,) if step > 4 else (), 12), False),  # its turn may still come
        (each_layer(lambda step: (0,) if step % 8 else (), 40), False),  # each eighth turn is its
        (each_layer(lambda step: (0,) if step > 4 else (), 16, detaches=True), False),
        (each_layer(lambda step: (0,) if step > 4 else (1,), 16), False),  # one after the other
    ],
)
def test_an_optimizer_that_steps_no_more(trains, expected):
    assert any("steps no more after its step 4" in why for why in open_of(trains)) == expected


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
