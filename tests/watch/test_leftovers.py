"""Backward passes after the last step."""

from contextlib import suppress

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import conformance


def open_of(trains):
    torch.manual_seed(0)
    with suppress(AssertionError), conformance.watching() as findings:
        trains()
    assert not findings.causes
    return [*findings.open]


def stopping(at, elsewhere=False):
    """No step any more from some step on, of thirty."""

    def trains():
        model = nn.Linear(6, 3)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)

        def loss():
            return cross_entropy(model(torch.randn(8, 6)), torch.randint(3, (8,)))

        for step in range(30):
            if elsewhere and step >= at:
                loss().backward()
            else:
                loss().backward()
            if step < at:
                optimizer.step()
                optimizer.zero_grad()

    return trains


@pytest.mark.parametrize(
    ("trains", "expected"),
    [
        (stopping(30), False),
        (stopping(22), False),
        (stopping(15), True),
        (stopping(15, elsewhere=True), False),  # as in a look at what was trained
    ],
)
def test_passes_after_the_last_step(trains, expected):
    assert any("reach no step" in why for why in open_of(trains)) == expected
