"""`zero_grad`, of optimizers and of modules."""

from __future__ import annotations

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

from .places import here


@pytest.fixture
def recording(record):
    return record()


def cleared(recording):
    fields = ("by", "optimizer", "parameters", "set_to_none")
    return [tuple(event[field] for field in fields) for event in recording.of_kind("zero_grad")]


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_an_optimizers(recording, kind):
    model = recording.task.model()
    optimizer = kind(model.parameters(), lr=0.1)
    optimizer.zero_grad()
    place = here(-1)
    optimizer.zero_grad(False)
    optimizer.zero_grad(set_to_none=False)
    to_zero = ("optimizer", 0, [0, 1], False)
    assert cleared(recording) == [("optimizer", 0, [0, 1], True), to_zero, to_zero]
    assert recording.of_kind("zero_grad")[0]["where"] == place


def test_a_modules(recording):
    model = recording.task.model()
    torch.nn.Sequential(model).zero_grad()
    model.zero_grad(set_to_none=False)
    assert cleared(recording) == [("model", None, [0, 1], True), ("model", None, [0, 1], False)]


@pytest.mark.usefixtures("group")
def test_a_wrapped_modules(recording):
    DistributedDataParallel(recording.task.model()).zero_grad()
    assert cleared(recording) == [("model", None, [0, 1], True)]


def test_others(recording):
    """Of other models, and of one optimizer of several."""
    model = recording.task.model()
    other = torch.nn.Linear(3, 3)
    other.zero_grad()
    torch.optim.SGD(other.parameters()).zero_grad()
    torch.optim.SGD([model.bias]).zero_grad()
    assert cleared(recording) == [("optimizer", 0, [1], True)]


def test_an_optimizer_that_does_it_itself(recording):
    """It is seen by what it does."""

    class Own(torch.optim.SGD):
        def zero_grad(self, set_to_none=True):
            for parameter in self.param_groups[0]["params"]:
                parameter.grad = None

    model = recording.task.model()
    optimizer = Own(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.zero_grad()
    model(torch.ones(1, 2)).sum().backward()
    assert cleared(recording) == [("hand", None, [0, 1], True)]
