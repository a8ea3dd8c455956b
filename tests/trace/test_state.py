"""How a recorder recognises objects, tensors, rows of samples and parts of flat tensors."""

from __future__ import annotations

import gc
from types import SimpleNamespace

import pytest
import torch

from conformance.trace.emit import Recording
from conformance.trace.state import deepspeed
from conformance.trace.state.finding import Rows
from conformance.trace.state.identities import Numbers, Stamp
from conformance.trace.state.optimizer_state import algorithm


class Thing:
    pass


def test_each_kind_is_numbered_in_order_of_first_sight():
    numbers = Numbers()
    one, other = Thing(), Thing()
    assert [numbers.of("thing", thing) for thing in (one, other, one)] == [0, 1, 0]
    assert (numbers.of("other kind", other), numbers.known("other kind", one)) == (0, None)
    assert numbers.alive("thing") == [one, other]


def test_freed_objects_take_no_memory():
    """Another object may get the identity of a freed one, but not its number."""
    numbers = Numbers()
    kept = Thing()
    assert numbers.of("thing", kept) == 0
    assert [numbers.of("thing", Thing()) for _ in range(100)] == list(range(1, 101))
    assert numbers.alive("thing") == [kept]
    assert len(numbers._of["thing"]) == 1


def test_the_same_tensor_in_the_same_version():
    weight = torch.zeros(3, requires_grad=True)
    weight.sum().backward()
    stamp = Stamp(weight.grad)
    gc.collect()
    assert stamp == Stamp(weight.grad)
    weight.grad.mul_(2)
    assert stamp != Stamp(weight.grad)
    assert stamp != Stamp(torch.zeros(3))


def test_stamps_of_freed_tensors_equal_nothing():
    """Even if another tensor reuses the memory."""
    stamps = []
    for _ in range(200):
        tensor = torch.zeros(3)
        stamps.append(Stamp(tensor))
        assert stamps[-1] == Stamp(tensor)
        del tensor
    assert all(stamp != stamps[-1] for stamp in stamps)
    assert len({stamp._identity for stamp in stamps}) < len(stamps)


def test_a_stamp_keeps_no_tensor_alive():
    tensor = torch.zeros(3)
    reference = torch._C._WeakTensorRef(tensor)
    stamp = Stamp(tensor)
    del tensor
    assert reference.expired()
    assert stamp != 0


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [([[0.3, 7.0]], True), ([[0.3, 2.99]], False), ([[0.3, 7.0], [0.3, 3.0]], False), ([[0.0, 0.0]], False)],
)
def test_inputs_that_are_no_samples_are_foreign(inputs, expected):
    rows = Rows([[0.3, 3.0], [5.0, -1.0], [0.0, 0.0]])
    assert rows.are_foreign(torch.tensor(inputs)) == expected


def test_samples_that_are_equal_in_the_inputs_dtype_are_ambiguous():
    rows = Rows([[1.0], [1.001], [2.0]])
    inputs = torch.tensor([[1.0], [1.001], [2.0]], dtype=torch.float64)
    assert rows.of(inputs) == [0, 1, 2]
    assert rows.of(inputs.bfloat16()) == [None, None, 2]


def zero(*, part):
    """A model with a weight of five and a bias of two elements, and rank 1's state in stage 1 with two ranks: the
    elements from the fourth on."""
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


def test_a_rank_shows_its_stepped_part():
    _, flat, wrapper, watched = zero(part=False)
    optimizer = deepspeed.parted(wrapper, watched)
    flat.grad = torch.tensor([-3.0, -4.0, -5.0, -6.0])
    optimizer.take_gradients()
    watched.stepped(watched.find(optimizer))
    assert watched.weights() == [None, None, None, 3.0, 4.0, 5.0, 6.0]
    assert watched.gradients(optimizer.tensors) == [None, None, None, -3.0, -4.0, -5.0, -6.0]
    assert watched.held() == [3, 4, 5, 6]
    assert algorithm(optimizer) == "SGD"


def test_a_rank_without_a_part_of_a_parameter():
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


def test_copies_are_the_models_own_weights():
    _, _, wrapper, watched = zero(part=False)
    assert watched.copies() is None
    watched.stepped(deepspeed.parted(wrapper, watched).tensors)
    assert watched.copies() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
