"""Gradients that a script computes only to look at them, and takes back before the step: all of it is right."""

import pytest
import torch

import conformance
from conformance.watch.verdict import verdict

DATA = torch.arange(48.0).reshape(16, 3).cos()


def watched(window):
    """The verdict on a training whose windows are made by `window`, given the model and a function that goes
    backward."""
    try:
        with conformance.watching() as findings:
            model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

            def backward(rows):
                model(DATA[rows]).square().mean().backward()

            for _ in range(5):
                optimizer.zero_grad()
                window(model, backward)
                optimizer.step()
    except AssertionError:
        pass
    return verdict(findings)


def zero_by_hand(model):
    for parameter in model.parameters():
        parameter.grad.zero_()


def puts_back(model, backward):
    backward(slice(8))
    mine = [parameter.grad.clone() for parameter in model.parameters()]
    backward(slice(8, 16))
    for parameter, own in zip(model.parameters(), mine, strict=True):
        parameter.grad = own


def looks_first(model, backward):
    (model(DATA[8:]).abs().mean()).backward()
    zero_by_hand(model)
    backward(slice(8))


def looks_first_and_clears(model, backward):
    (model(DATA[8:]).abs().mean()).backward()
    model.zero_grad()
    backward(slice(8))


def loses_the_first(model, backward):
    for rows in (slice(8), slice(8, 16)):
        if rows.start:
            zero_by_hand(model)
        backward(rows)


def clears_the_first(model, backward):
    for rows in (slice(8), slice(8, 16)):
        model.zero_grad()
        backward(rows)


def clears_the_first_half(model, backward):
    for rows in (slice(8), slice(8, 16)):
        model.zero_grad()
        (model(DATA[rows]).square().mean() / 2).backward()


@pytest.mark.parametrize(
    ("window", "expected"),
    [
        (puts_back, "UNDECIDED"),
        (looks_first, "UNDECIDED"),
        (looks_first_and_clears, "CONFORMS"),
        (loses_the_first, "DOES NOT CONFORM"),
        (clears_the_first, "CONFORMS"),  # of a memory, to compare with
        (clears_the_first_half, "DOES NOT CONFORM"),
    ],
)
def test_what_is_taken_back(window, expected):
    assert watched(window) == expected
