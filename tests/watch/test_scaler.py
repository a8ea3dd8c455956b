"""Gradients under a GradScaler: old ones, zeros, and calls between backward passes."""

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

from .scripts import laws, shown
from .trained import network, watched


def found(window, steps=8, **scaler):
    """window: called with the step, the model, the optimizer and the scaler; ends with an update."""

    def train():
        model = network(3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        of_loss = torch.amp.GradScaler("cpu", **{"init_scale": 1024.0, "growth_interval": 10**6, **scaler})
        for step in range(steps):
            window(step, model, optimizer, of_loss)

    return watched(train)


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


@pytest.mark.parametrize("scale", [4.0, 1024.0, 65536.0])
@pytest.mark.parametrize(
    ("clears", "expected"), [(clear, "CONFORMS"), (fill_with_zeros, "CONFORMS"), (keep, {"watch/cleared"})]
)
def test_old_gradients_are_found_however_small_they_are_next_to_scaled_ones(clears, expected, scale):
    assert shown(found(trains(clears), init_scale=scale)) == expected


@pytest.mark.parametrize(("every", "expected"), [(1, {}), (2, {"loss-scale.not-updated": 3})])
def test_each_step_of_a_scaler_has_an_update(every, expected):
    """Torch asks for an update between two steps of one scaler, but not of two."""

    def window(step, model, optimizer, scaler):
        one = torch.amp.GradScaler("cpu", init_scale=1024.0)
        optimizer.zero_grad()
        one.scale(loss(model)).backward()
        one.step(optimizer)
        if step % every == 0:
            one.update()

    findings = found(window)
    assert shown(findings) == "CONFORMS"
    assert {code: one.count for code, one in findings.open.items()} == expected


@pytest.mark.parametrize(("interval", "expected"), [(2000, {}), (1, {"loss-scale.restarts": 7})])
def test_a_new_scaler_for_each_step_loses_what_its_updates_changed(interval, expected):
    def window(step, model, optimizer, scaler):
        one = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=interval)
        optimizer.zero_grad()
        one.scale(loss(model)).backward()
        one.step(optimizer)
        one.update()

    assert {code: one.count for code, one in found(window).open.items()} == expected


def test_scalers_that_take_turns_lose_nothing():
    both = [torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1) for _ in range(2)]

    def window(step, model, optimizer, scaler):
        one = both[step % 2]
        optimizer.zero_grad()
        one.scale(loss(model)).backward()
        one.step(optimizer)
        one.update()

    assert "loss-scale.restarts" not in found(window).open


@pytest.mark.parametrize(
    ("factor", "dtype", "divisor", "is_left"),
    [
        (1024.0, torch.bfloat16, 1.0, True),
        (1024.0, torch.bfloat16, 1024.0, False),
        (1024.0, torch.float32, 1.0, False),
        (1000.0, torch.bfloat16, 1.0, False),
        (2.0, torch.bfloat16, 1.0, False),
    ],
)
def test_a_hand_written_loss_scale_is_left_in_the_step(factor, dtype, divisor, is_left):
    def train():
        model = network(3).to(dtype)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
        for _ in range(6):
            optimizer.zero_grad()
            for _ in range(2):
                (model(torch.randn(8, 6, dtype=dtype)).float().square().mean() / 2 * factor).backward()
            for parameter in model.parameters():
                parameter.grad /= divisor
            optimizer.step()

    assert ("loss-scale.left" in watched(train).open) == is_left


def test_an_intended_decay_of_gradients_is_no_violation():
    assert laws(found(trains(decay))) == set()


def test_overflows_in_a_row_that_are_cleared_by_hand():
    assert laws(found(trains(fill_with_zeros, overflows=(1, 2, 3, 4, 5, 6)))) == set()
    assert laws(found(trains(fill_with_zeros, overflows=range(8)))) == set()


def test_few_numbers_are_a_multiple_of_any_others():
    """Each of two optimizers has one number, and skips by itself; both are cleared by hand."""

    def train():
        parts = [nn.Linear(1, 1, bias=False) for _ in range(2)]
        optimizers = [torch.optim.SGD(part.parameters(), lr=0.01) for part in parts]
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=10**6)
        for step in range(12):
            lost = sum(part(torch.randn(4, 1)).square().mean() for part in parts)
            scaler.scale(lost).backward()
            if step % 3 == 1:
                parts[0].weight.grad.fill_(torch.inf)
            for optimizer, part in zip(optimizers, parts, strict=True):
                scaler.step(optimizer)
                part.weight.grad.zero_()
            scaler.update()

    assert not watched(train).causes


@pytest.mark.parametrize(("every", "expected"), [(1, "UNDECIDED"), (4, "UNDECIDED"), (100, "CONFORMS")])
def test_computed_gradients_are_set_to_zero(every, expected):
    def window(step, model, optimizer, scaler):
        loss(model).backward()
        if step % every == every - 1:
            fill_with_zeros(step, model, optimizer)
        optimizer.step()
        optimizer.zero_grad()

    assert shown(found(window)) == expected


def fill_all(zero):
    def clears(model):
        for parameter in model.parameters():
            if parameter.grad is not None:
                zero(parameter.grad)

    return clears


@pytest.mark.parametrize(
    ("clears", "expected"),
    [
        (fill_all(lambda gradient: gradient.zero_()), set()),
        (fill_all(lambda gradient: gradient.data.zero_()), set()),
        (lambda model: None, {"watch/cleared"}),
    ],
)
def test_gradients_that_are_cleared_after_the_passes_of_another_optimizer(clears, expected):
    def train():
        models = [network(3) for _ in range(2)]
        main, other = [torch.optim.SGD(model.parameters(), lr=0.01) for model in models]
        scaler = torch.amp.GradScaler("cpu", init_scale=65536.0, growth_interval=10**6)
        for _ in range(6):
            clears(models[0])
            for _ in range(2):
                scaler.scale(loss(models[0]) / 2).backward()
            scaler.step(main)
            scaler.update()
            other.zero_grad()
            loss(models[1]).backward()
            other.step()

    assert laws(watched(train)) == expected


# Calls between two backward passes, or between a pass and unscaling.


def penalty(scales):
    """A penalty after unscaling, which is wrong if the penalty is also scaled."""

    def between(model, optimizer, scaler):
        scaler.unscale_(optimizer)
        (scaler.scale(loss(model)) if scales else loss(model)).backward()

    return between


def by_layer(model, optimizer, scaler):
    """A layer of small weights has a small limit."""
    for parameter in model.parameters():
        clip_grad_norm_([parameter], (1e-5 if parameter.dim() == 1 else 1.0) * scaler.get_scale())


def by_value(model, optimizer, scaler):
    clip_grad_value_(model.parameters(), 5e-4 * scaler.get_scale())


def to_zero(model, optimizer, scaler):
    clip_grad_norm_(model[0].parameters(), 0.0)


def to_one(model, optimizer, scaler):
    clip_grad_norm_(model.parameters(), 1.0)


@pytest.mark.parametrize(
    ("between", "scale", "expected"),
    [
        (penalty(scales=True), 1024.0, {"watch/unscale-whole-window"}),
        (penalty(scales=False), 1024.0, {"micro.weighted"}),
        (by_layer, 65536.0, {"clipping.scaled-norm", "clipping.parts"}),
        (by_value, 65536.0, {"clipping.scaled-value", "clipping.by-value"}),
        (to_zero, 65536.0, {"clipping.parts"}),
        (to_one, 65536.0, {"watch/unscale-before-clip"}),  # an unscaled limit below 0.001 is not intended
    ],
)
def test_calls_between_a_pass_and_the_step(between, scale, expected):
    def window(step, model, optimizer, scaler):
        optimizer.zero_grad()
        scaler.scale(loss(model)).backward()
        between(model, optimizer, scaler)
        scaler.step(optimizer)
        scaler.update()

    findings = found(window, steps=4, init_scale=scale)
    assert (laws(findings) or {*findings.open}) == expected


def by_hand(limit, *, early):
    """Shortens all gradients to a norm that depends on the loss scale, before or after they are unscaled."""

    def between(model, optimizer, scaler):
        if not early:
            scaler.unscale_(optimizer)
        gradients = [parameter.grad for parameter in model.parameters()]
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
        torch._foreach_mul_(gradients, (limit(scaler.get_scale()) / (norm + 1e-6)).clamp(max=1.0))

    return between


@pytest.mark.parametrize(
    ("between", "grows", "expected"),
    [
        (by_hand(lambda scale: 0.5, early=True), False, {"watch/unscale-before-clip"}),
        (by_hand(lambda scale: 0.5, early=True), True, {"watch/unscale-before-clip"}),
        (by_hand(lambda scale: 1e-3, early=False), False, set()),
        (by_hand(lambda scale: 1e-3, early=False), True, set()),
        (by_hand(lambda scale: 1e-3 * scale, early=True), False, {"clipping.scaled-norm"}),
    ],
)
def test_gradients_that_a_script_shortens_itself(between, grows, expected):
    def window(step, model, optimizer, scaler):
        optimizer.zero_grad()
        scaler.scale(loss(model)).backward()
        between(model, optimizer, scaler)
        scaler.step(optimizer)
        scaler.update()

    findings = found(window, steps=6, growth_interval=2 if grows else 10**6)
    assert (laws(findings) or {*findings.open}) == expected
