"""Weights change for an optimizer when its own do, and not with each step of another one."""

from contextlib import suppress

import pytest
import torch
from torch import nn

import conformance
from conformance.watch.verdict import verdict


def network():
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 1))


def found(trains):
    torch.manual_seed(0)
    with suppress(AssertionError), conformance.watching() as findings:
        trains()
    return verdict(findings), {law for law, _ in findings.causes}


def loss(model):
    return model(torch.randn(4, 6)).square().mean()


def step(model, optimizer):
    optimizer.zero_grad()
    loss(model).backward()
    optimizer.step()


def two():
    models = network(), network()
    return models, [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]


@pytest.mark.parametrize("beside", [False, True])
def test_another_optimizer_steps_within_a_window_that_is_cleared(beside):
    def trains():
        (model, other), (optimizer, of_other) = two()
        for _ in range(8):
            for _ in range(2):
                optimizer.zero_grad()
                (loss(model) / 2).backward()
                if beside:
                    step(other, of_other)
            optimizer.step()

    assert found(trains)[0] in ("DOES NOT CONFORM", "UNDECIDED")


def test_another_optimizer_steps_between_a_term_in_evaluation_mode_and_the_loss():
    def trains():
        (model, other), (optimizer, of_other) = two()
        for number in range(12):
            optimizer.zero_grad()
            if number % 3 == 0:
                model.eval()
                loss(model).backward()
                model.train()
                step(other, of_other)
            loss(model).backward()
            optimizer.step()

    assert found(trains)[1] == set()


@pytest.mark.parametrize(("shared", "expected"), [(False, "CONFORMS"), (True, "UNDECIDED")])
def test_weights_that_both_passes_go_through_change_between_them(shared, expected):
    def trains():
        (model, head), (optimizer, of_head) = two()
        body = nn.Linear(6, 6)
        of_body = torch.optim.SGD(body.parameters(), lr=0.1)
        for _ in range(6):
            of_body.zero_grad()
            head(body(torch.randn(4, 6))).square().mean().backward()
            step(head if shared else model, of_head if shared else optimizer)
            head(body(torch.randn(4, 6))).square().mean().backward()
            of_body.step()
            if not shared:
                of_head.step()
                of_head.zero_grad()

    assert found(trains)[0] == expected


@pytest.mark.parametrize(("clears", "expected"), [(True, "CONFORMS"), (False, "UNDECIDED")])
def test_a_search_adds_up_gradients_of_several_weights(clears, expected):
    def trains():
        model = network()
        optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)

        def closure():
            if clears:
                optimizer.zero_grad()
            result = model(torch.ones(4, 6)).square().mean()
            result.backward()
            return result

        for _ in range(4):
            optimizer.zero_grad()
            optimizer.step(closure)

    assert found(trains)[0] == expected


@pytest.mark.parametrize(("number", "expected"), [(2, "CONFORMS"), (None, "DOES NOT CONFORM")])
def test_a_closure_that_is_called_once_is_no_search(number, expected):
    def trains():
        model = network()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        loader = torch.utils.data.DataLoader(torch.randn(48, 6), 4)
        for _ in range(3):
            batches = iter(loader)

            def closure(batches=batches):
                optimizer.zero_grad()
                for _ in range(2):
                    result = nn.functional.mse_loss(model(next(batches)), torch.zeros(4, 1))
                    (result / (number or 1)).backward()
                return result

            for _ in range(6):
                optimizer.step(closure)

    assert found(trains)[0] == expected
