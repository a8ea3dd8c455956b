"""What torch compiles or exports is what it would be without a watch, and is watched."""

import warnings

import pytest
import torch
from torch._dynamo.utils import counters

import conformance


def function(model, inputs):
    return torch.compile(lambda: model(inputs).square().mean(), backend="eager", fullgraph=True)


def method(model, inputs):
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    return lambda: compiled(inputs).square().mean()


def exported(model, inputs):
    def loss():
        with torch.no_grad():
            torch.export.export(model, (inputs,), strict=True)
        return model(inputs).square().mean()

    return loss


def train(way):
    """How many graphs torch made."""
    torch._dynamo.reset()
    counters.clear()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Linear(5, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = way(model, torch.randn(8, 6))
    for _ in range(3):
        loss().backward()
        optimizer.step()
        optimizer.zero_grad()
    return counters["stats"]["unique_graphs"]


@pytest.mark.parametrize("way", [function, method, exported])
def test_it_is_compiled_as_without_a_watch(way):
    plainly = train(way)
    with warnings.catch_warnings(), conformance.watching():
        warnings.simplefilter("error")
        watched = train(way)
    assert watched == plainly
