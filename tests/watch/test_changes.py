"""What changes gradients on their way: hooks of the script's own, before they are reduced and before the step."""

from contextlib import suppress

import pytest
import torch

import conformance
from conformance.watch.verdict import verdict

DATA = torch.arange(24.0).reshape(8, 3).cos()


def train(model, optimizer, steps=4):
    for _ in range(steps):
        optimizer.zero_grad()
        model(DATA).square().mean().backward()
        optimizer.step()


def watched(change):
    """The verdict on a small training, which `change` is given the model and the optimizer of, and what was found."""
    with suppress(AssertionError), conformance.watching() as findings:
        model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        change(model, optimizer)
        train(model, optimizer)
    return verdict(findings), {code: fact.says.values for code, fact in findings.open.items()}


def hook(does, first=False):
    def change(model, optimizer):
        for parameter in list(model.parameters())[: 1 if first else None]:
            parameter.register_hook(does)

    return change


A_THIRD = {"ranks.factor": {"factor": pytest.approx(1 / 3, rel=1e-4)}}


def before_the_step(model, optimizer):
    def shrink(optimizer, args, kwargs):
        for parameter in model.parameters():
            parameter.grad /= 3

    optimizer.register_step_pre_hook(shrink)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (hook(lambda gradient: None), ("CONFORMS", {})),
        (hook(lambda gradient: gradient / 3), ("UNDECIDED", A_THIRD)),
        (hook(lambda gradient: gradient / 3, first=True), ("CONFORMS", {"clipping.hooks": {}})),
        (hook(lambda gradient: gradient.clamp(-0.01, 0.01)), ("CONFORMS", {"clipping.hooks": {}})),
        (before_the_step, ("UNDECIDED", A_THIRD)),
    ],
)
def test_hooks(change, expected):
    assert watched(change) == expected


def test_the_script_s_hooks_stay_in_their_order():
    called = []
    parameter = torch.nn.Parameter(torch.ones(3))
    with conformance.watching():
        optimizer = torch.optim.SGD([parameter], lr=0.1)
        for name in ("a", "b"):
            parameter.register_hook(lambda gradient, name=name: called.append(name))
        for _ in range(2):
            optimizer.zero_grad()
            parameter.square().mean().backward()
            optimizer.step()
    assert called == ["a", "b"] * 2
    assert list(map(len, (parameter._backward_hooks, optimizer._optimizer_step_pre_hooks))) == [2, 0]


def test_gradients_that_are_put_there_by_hand_may_be_the_same_again():
    """As master weights have them: no backward pass ever reaches what is stepped."""
    with suppress(AssertionError), conformance.watching() as findings:
        master = torch.nn.Parameter(torch.ones(3))
        optimizer = torch.optim.SGD([master], lr=0.1)
        for _ in range(3):
            master.grad = torch.full((3,), 0.5)
            optimizer.step()
    assert not findings.causes
    assert (findings.conserved, [*findings.open]) == (0, ["changed.by-hand"])
