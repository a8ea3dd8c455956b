"""Parts of parameters' masters that lie in flat tensors of a wrapper's, and the optimizer that steps these."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from conformance.trace.emit import Recording
from conformance.trace.state import deepspeed
from conformance.trace.state.optimizers import algorithm


def zero(*, part):
    """A model of a weight of five and a bias of two elements, and what stage 1 of two ranks keeps for it on rank 1:
    the elements from the fourth on."""
    model = torch.nn.Linear(5, 2)
    model.weight = torch.nn.Parameter(torch.arange(5.0).view(1, 5))
    model.bias = torch.nn.Parameter(torch.tensor([5.0, 6.0]))
    flat = torch.tensor([3.0, 4.0, 5.0, 6.0]).requires_grad_()
    address = SimpleNamespace
    model.weight._hp_mapping = address(
        hp_fragment_address=address(start=0, numel=2), lp_fragment_address=address(start=3, numel=2)
    )
    model.bias._hp_mapping = (
        None
        if part
        else address(hp_fragment_address=address(start=2, numel=2), lp_fragment_address=address(start=0, numel=2))
    )
    inner = torch.optim.SGD([flat], lr=0.5)
    wrapper = SimpleNamespace(optimizer=inner, bit16_groups=[[model.weight, model.bias]])
    recording = Recording([].append)
    recording.watched.add(model)
    return model, flat, wrapper, recording.watched


def test_a_rank_shows_what_it_steps():
    _, flat, wrapper, watched = zero(part=False)
    optimizer = deepspeed.parted(wrapper, watched)
    flat.grad = torch.tensor([-3.0, -4.0, -5.0, -6.0])
    optimizer.take_gradients()
    watched.stepped(watched.find(optimizer))
    assert watched.weights() == [None, None, None, 3.0, 4.0, 5.0, 6.0]
    assert watched.gradients(optimizer.tensors) == [None, None, None, -3.0, -4.0, -5.0, -6.0]
    assert watched.held() == [3, 4, 5, 6]
    assert algorithm(optimizer) == "SGD"


def test_nothing_of_a_parameter():
    _, _, wrapper, watched = zero(part=True)
    watched.stepped(deepspeed.parted(wrapper, watched).tensors)
    assert watched.held() == [3, 4]
    assert watched.weights() == [None, None, None, 3.0, 4.0, None, None]


def test_values_and_settings_are_those_of_the_step():
    _, flat, wrapper, watched = zero(part=False)
    optimizer = deepspeed.parted(wrapper, watched)
    flat.data = flat.data * 2
    wrapper.optimizer.param_groups[0]["lr"] = 0.25
    optimizer.take()
    assert watched.weights(optimizer.tensors)[3:] == [6.0, 8.0, 10.0, 12.0]
    assert [group["lr"] for group in optimizer.param_groups] == [0.25]


def test_backwards_still_add_to_the_model():
    model, _, wrapper, watched = zero(part=False)
    watched.stepped(deepspeed.parted(wrapper, watched).tensors)
    assert [one is two for one, two in zip(watched.computing, model.parameters(), strict=True)] == [True, True]


def test_another_model_or_another_version():
    _, _, wrapper, watched = zero(part=False)
    _, _, _, other = zero(part=False)
    assert deepspeed.parted(wrapper, other) is None
    del wrapper.bit16_groups
    assert deepspeed.parted(wrapper, watched) is None


def test_copies_are_what_the_model_computes_with():
    _, _, wrapper, watched = zero(part=False)
    assert watched.copies() is None
    watched.stepped(deepspeed.parted(wrapper, watched).tensors)
    assert watched.copies() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
