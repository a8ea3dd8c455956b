"""Steps along a gradient that a step has used before: a search along a line goes back between them, two optimizers may
share one gradient, and else it is wrong."""

import pytest
import torch

import conformance
from conformance.watch import records
from conformance.watch.verdict import verdict

from .scripts import Script, total

DATA = torch.arange(96.0).reshape(32, 3).cos()


def watched(train):
    torch.manual_seed(0)
    try:
        with conformance.watching() as findings:
            train(torch.nn.Sequential(torch.nn.Linear(3, 16), torch.nn.Tanh(), torch.nn.Linear(16, 8)))
    except AssertionError:
        pass
    return {cause.first.law for cause in findings.causes.values()} or verdict(findings)


def loss(model, step=0):
    return model(DATA[step:]).square().mean()


def searches(goes_back):
    """Two steps along each gradient."""

    def train(model):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(5):
            optimizer.zero_grad()
            loss(model, step).backward()
            before = [parameter.data.clone() for parameter in model.parameters()]
            optimizer.step()
            if goes_back:
                for parameter, was in zip(model.parameters(), before, strict=True):
                    parameter.data.copy_(was)
            optimizer.step()

    return train


def puts_back(model):
    """Goes backward again at the new weights, and back with the gradients that it has kept where that is no better."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(8):
        optimizer.zero_grad()
        loss(model, step).backward()
        kept = [(parameter.data.clone(), parameter.grad.clone()) for parameter in model.parameters()]
        optimizer.step()
        optimizer.zero_grad()
        loss(model, step).backward()
        if step % 2:
            for parameter, (was, gradient) in zip(model.parameters(), kept, strict=True):
                parameter.data.copy_(was)
                parameter.grad.copy_(gradient)
            optimizer.step()


def in_turns(second):
    """Two optimizers step after each backward pass; the second one has these parameters."""

    def train(model):
        optimizers = [torch.optim.SGD(model.parameters(), lr=0.1), torch.optim.Adam(second(model).parameters())]
        for step in range(5):
            model.zero_grad()
            loss(model, step).backward()
            for optimizer in optimizers:
                optimizer.step()

    return train


@pytest.mark.parametrize(
    ("train", "expected"),
    [
        (searches(goes_back=True), "UNDECIDED"),
        (searches(goes_back=False), {"watch/fresh"}),
        (puts_back, "UNDECIDED"),
        (in_turns(lambda model: model), "UNDECIDED"),
        (in_turns(lambda model: model[2]), {"watch/fresh"}),
    ],
)
def test_a_gradient_is_used_twice(train, expected):
    assert watched(train) == expected


@pytest.mark.parametrize(("is_elsewhere", "expected"), [(True, "UNDECIDED"), (False, "DOES NOT CONFORM")])
def test_ranks_that_change_their_weights_between_steps_may_meet(is_elsewhere, expected):
    """As they do who average some of the weights now and then, or go halfway to those of a neighbour."""
    script = Script(drift=0.1)
    for window in range(5):
        script.step(script.backward())
        for stream in script.streams:
            assert isinstance(stream[-1], records.Stepped)
            stream[-1].is_elsewhere = is_elsewhere and window % 2 == 1
        script.clear()
    assert verdict(script.findings()) == expected


@pytest.mark.parametrize("of", [(), (0,), (0, 1)])
def test_weights_that_one_of_several_ranks_changes_are_a_fact(of):
    script = Script()
    for step in range(4):
        script.step([total(script.backward(), 0.5)] * 2)
        for rank in of if step == 2 else ():
            script.streams[rank][-1].is_elsewhere = True
        script.clear()
    findings = script.findings()
    assert (findings.causes, [*findings.open]) == ({}, ["agreement.between"] * bool(of))
