"""Gradients under a GradScaler that nobody clears, and what is set to zero."""

from contextlib import suppress

import pytest
import torch
from torch import nn

import conformance
from conformance.watch.verdict import verdict


def found(window, scale=1024.0, steps=8):
    """window: is given the step, the model, the optimizer and the scaler, and ends with an update."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=10**6)
    with suppress(AssertionError), conformance.watching() as findings:
        for step in range(steps):
            window(step, model, optimizer, scaler)
    return verdict(findings), {law for law, _ in findings.causes}


def loss(model):
    return model(torch.randn(4, 6)).square().mean()


def trains(clears, overflows=()):
    """overflows: the steps whose loss is infinite."""

    def window(step, model, optimizer, scaler):
        scaler.scale(loss(model) * (torch.inf if step in overflows else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()
        clears(step, model, optimizer)

    return window


def clear(step, model, optimizer):
    optimizer.zero_grad()


def keep(step, model, optimizer):
    pass


def fill_with_zeros(step, model, optimizer):
    for parameter in model.parameters():
        parameter.grad.zero_()


def decay(step, model, optimizer):
    for parameter in model.parameters():
        parameter.grad.mul_(0.5)


def clear_after_steps(step, model, optimizer):
    if all(parameter.grad.isfinite().all() for parameter in model.parameters()):
        optimizer.zero_grad()


@pytest.mark.parametrize("scale", [4.0, 1024.0, 65536.0])
@pytest.mark.parametrize(
    ("clears", "expected"), [(clear, "CONFORMS"), (fill_with_zeros, "CONFORMS"), (keep, "DOES NOT CONFORM")]
)
def test_however_small_what_is_left_is_beside_scaled_gradients(clears, expected, scale):
    assert found(trains(clears), scale)[0] == expected


def test_what_the_script_decays_is_its_own():
    assert found(trains(decay))[1] == set()


@pytest.mark.parametrize(
    ("clears", "broken"), [(clear, set()), (fill_with_zeros, set()), (clear_after_steps, {"watch/cleared"})]
)
def test_infinite_gradients_that_are_kept_after_a_skip(clears, broken):
    assert found(trains(clears, overflows=(2,)), steps=16)[1] == broken


def test_overflows_in_a_row_that_are_cleared_by_hand():
    assert found(trains(fill_with_zeros, overflows=(1, 2, 3, 4, 5, 6)))[1] == set()
    assert found(trains(fill_with_zeros, overflows=range(8)))[1] == set()


def test_few_numbers_are_any_multiple_of_others():
    """Each of two optimizers has one number, and skips by itself; both are cleared by hand."""
    torch.manual_seed(0)
    parts = [nn.Linear(1, 1, bias=False) for _ in range(2)]
    optimizers = [torch.optim.SGD(part.parameters(), lr=0.01) for part in parts]
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=10**6)
    with suppress(AssertionError), conformance.watching() as findings:
        for step in range(12):
            lost = sum(part(torch.randn(4, 1)).square().mean() for part in parts)
            scaler.scale(lost).backward()
            if step % 3 == 1:
                parts[0].weight.grad.fill_(torch.inf)
            for optimizer, part in zip(optimizers, parts, strict=True):
                scaler.step(optimizer)
                part.weight.grad.zero_()
            scaler.update()
    assert not findings.causes


@pytest.mark.parametrize(("every", "expected"), [(1, "UNDECIDED"), (4, "UNDECIDED"), (100, "CONFORMS")])
def test_what_was_computed_is_set_to_zero(every, expected):
    def window(step, model, optimizer, scaler):
        loss(model).backward()
        if step % every == every - 1:
            fill_with_zeros(step, model, optimizer)
        optimizer.step()
        optimizer.zero_grad()

    assert found(window) == (expected, set())


def keep_all(model):
    pass


def fill_all_with_zeros(model):
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.zero_()


def fill_all_data_with_zeros(model):
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.data.zero_()


@pytest.mark.parametrize(
    ("clears", "expected"),
    [(fill_all_with_zeros, set()), (fill_all_data_with_zeros, set()), (keep_all, {"watch/cleared"})],
)
def test_gradients_that_are_cleared_after_the_passes_of_another_optimizer(clears, expected):
    torch.manual_seed(0)
    models = [nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)) for _ in range(2)]
    main, other = [torch.optim.SGD(model.parameters(), lr=0.01) for model in models]
    scaler = torch.amp.GradScaler("cpu", init_scale=65536.0, growth_interval=10**6)
    with suppress(AssertionError), conformance.watching() as findings:
        for _ in range(6):
            clears(models[0])
            for _ in range(2):
                scaler.scale(loss(models[0]) / 2).backward()
            scaler.step(main)
            scaler.update()
            other.zero_grad()
            loss(models[1]).backward()
            other.step()
    assert {law for law, _ in findings.causes} == expected
