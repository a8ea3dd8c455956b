"""What changes gradients on their way: hooks of the script's own, before they are reduced and before the step."""

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
    try:
        with conformance.watching() as findings:
            model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            change(model, optimizer)
            train(model, optimizer)
    except AssertionError:
        pass
    return verdict(findings), " ".join([*findings.open, *findings.notes])


def hook(does, first=False):
    def change(model, optimizer):
        for parameter in list(model.parameters())[: 1 if first else None]:
            parameter.register_hook(does)

    return change


@pytest.mark.parametrize(
    ("does", "first", "expected", "why"),
    [
        (lambda gradient: None, False, "CONFORMS", ""),
        (lambda gradient: gradient / 3, False, "UNDECIDED", "as if by 0.33"),
        (lambda gradient: gradient / 3, True, "CONFORMS", "hooks of the script's own"),
        (lambda gradient: gradient.clamp(-0.01, 0.01), False, "CONFORMS", "hooks of the script's own"),
    ],
)
def test_hooks_on_parameters(does, first, expected, why):
    found, says = watched(hook(does, first))
    assert found == expected, says
    assert why in says


def test_hooks_before_the_step_are_seen():
    def halve(optimizer, args, kwargs):
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad /= 3

    found, says = watched(lambda model, optimizer: optimizer.register_step_pre_hook(halve))
    assert (found, "as if by 0.33" in says) == ("UNDECIDED", True)


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
    found = []

    def steps():
        with conformance.watching() as findings:
            found.append(findings)
            master = torch.nn.Parameter(torch.ones(3))
            optimizer = torch.optim.SGD([master], lr=0.1)
            for _ in range(3):
                master.grad = torch.full((3,), 0.5)
                optimizer.step()

    with pytest.raises(AssertionError, match="by hand, or come from a backward pass before"):
        steps()
    assert not found[0].causes
