"""Calls inside a running backward pass name it, and others name none."""

import pytest
import torch
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

from conformance.watch import records

from .recorded import records_in


def clip(optimizer, scaler, parameters):
    clip_grad_norm_(parameters, 1.0)


def clip_values(optimizer, scaler, parameters):
    clip_grad_value_(parameters, 1.0)


def step(optimizer, scaler, parameters):
    optimizer.step()


def clear(optimizer, scaler, parameters):
    optimizer.zero_grad()


def unscale(optimizer, scaler, parameters):
    scaler.unscale_(optimizer)
    scaler.update(2.0)


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (clip, records.Clipped),
        (clip_values, records.Clipped),
        (step, records.Stepped),
        (clear, records.Cleared),
        (unscale, records.Unscaled),
    ],
)
@pytest.mark.parametrize("is_in_hook", [True, False])
def test_a_call_names_the_backward_pass_that_it_is_in(tmp_path, call, kind, is_in_hook):
    model = torch.nn.Linear(3, 1, bias=False)
    with records_in(tmp_path) as found:
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
        given = optimizer, scaler, [model.weight]
        if is_in_hook:
            model.weight.register_post_accumulate_grad_hook(lambda _: call(*given))
        for _ in range(2):
            scaler.scale(model(torch.ones(2, 3)).sum()).backward()
            if not is_in_hook:
                call(*given)
    assert [one.within for one in found if isinstance(one, kind)] == ([1, 2] if is_in_hook else [None, None])


def test_a_pass_that_only_returns_gradients_is_none(tmp_path):
    model = torch.nn.Linear(3, 1)
    with records_in(tmp_path) as found:
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        loss = model(torch.ones(2, 3)).sum()
        loss.register_hook(lambda _: optimizer.zero_grad())
        torch.autograd.grad(loss, [*model.parameters()])
    assert [one.within for one in found if isinstance(one, records.Cleared)] == [None]
