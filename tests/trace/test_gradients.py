"""Changes of gradients that no torch call explains."""

from __future__ import annotations

import pytest
import torch

from conformance.trace.recorder import Recorder

from .places import here


def halve_data(parameter):
    parameter.grad.data.mul_(0.5)


def halve(parameter):
    parameter.grad.mul_(0.5)


def replace_by_half(parameter):
    parameter.grad = parameter.grad / 2


def replace_data_by_half(parameter):
    parameter.grad.data = parameter.grad.data / 2


class Training:
    """Gradients of a watched model to change by hand; `notice` makes the recorder look at them."""

    def __init__(self, model, events):
        self.model = model
        self._events = events

    def backward(self, rows=2):
        self.model(torch.arange(1.0, 2 * rows + 1).reshape(rows, 2)).sum().backward()
        self._events.clear()

    def notice(self):
        self.model.zero_grad()
        return [event for event in self._events if event["event"] in ("gradient_change", "zero_grad")][:-1]


@pytest.fixture
def small(record):
    recording = record()
    return Training(recording.task.model(), recording.events)


@pytest.fixture
def large():
    events = []
    with Recorder(events.append) as recorder:
        model = torch.nn.Sequential(torch.nn.Linear(2, 2000), torch.nn.Linear(2000, 1))
        recorder.watch(model)
        yield Training(model, events)


@pytest.mark.parametrize("change", [halve, replace_by_half, halve_data, replace_data_by_half])
def test_a_factor(small, change):
    small.backward()
    for parameter in small.model.parameters():
        change(parameter)
    small.model.zero_grad()
    place = here(-1)
    change, zero = small._events
    assert (change["event"], change["parameters"], change["factor"]) == ("gradient_change", [0, 1], 0.5)
    assert change["where"] == place
    assert change["since"] < change["seq"] < zero["seq"]


def test_a_factor_up_to_rounding(small):
    small.backward(rows=3)
    for parameter in small.model.parameters():
        parameter.grad /= 3
    [change] = small.notice()
    assert change["factor"] == pytest.approx(1 / 3, rel=1e-6)


def test_no_factor(small):
    """As when values are clipped."""
    small.backward()
    before = [value for parameter in small.model.parameters() for value in parameter.grad.flatten().tolist()]
    for parameter in small.model.parameters():
        parameter.grad.clamp_(max=4.0)
    [change] = small.notice()
    assert (change["parameters"], change["factor"], change["before"]) == ([0], None, before)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_non_finite_gradient_is_one_change(small, value):
    small.backward()
    small.model.bias.grad.fill_(value)
    torch.nn.utils.clip_grad_value_(small.model.weight, 100.0)
    assert [event["event"] for event in small._events] == ["gradient_change", "clip"]
    small._events.clear()
    assert small.notice() == []


def test_a_new_gradient(small):
    small.model.bias.grad = torch.ones(1)
    [change] = small.notice()
    assert (change["parameters"], change["factor"], change["before"]) == ([1], None, [None] * 3)


def test_equal_values_are_no_change(small):
    """Such as a copy of a gradient."""
    small.backward()
    small.model.weight.grad = small.model.weight.grad.clone()
    assert small.notice() == []


@pytest.mark.parametrize("size", ["small", "large"])
@pytest.mark.parametrize("to_none", [True, False])
def test_zeroing_by_hand(request, size, to_none):
    training = request.getfixturevalue(size)
    training.backward()
    for parameter in training.model.parameters():
        if to_none:
            parameter.grad = None
        else:
            parameter.grad.zero_()
    [zero] = training.notice()
    everything = list(range(len(list(training.model.parameters()))))
    assert (zero["by"], zero["optimizer"], zero["parameters"]) == ("hand", None, everything)
    assert zero["set_to_none"] is to_none


def test_zeroing_in_two_ways(small):
    small.backward()
    small.model.weight.grad = None
    small.model.bias.grad.zero_()
    [zero] = small.notice()
    assert (zero["parameters"], zero["set_to_none"]) == ([0, 1], None)


def test_zeroing_one_and_changing_another(small):
    small.backward()
    small.model.weight.grad = None
    small.model.bias.grad *= 2
    zero, change = small.notice()
    assert (zero["by"], zero["parameters"]) == ("hand", [0])
    assert (change["parameters"], change["factor"]) == ([1], 2.0)


def test_a_computed_zero_is_not_cleared(small):
    """Zero next to other changed gradients, such as by a decay; or from infinity by `nan_to_num`."""
    small.backward()
    small.model.weight.grad -= small.model.weight.grad.clone()
    small.model.bias.grad += 1.0
    [change] = small.notice()
    assert (change["event"], change["parameters"], change["factor"]) == ("gradient_change", [0, 1], None)
    small.backward()
    small.model.bias.grad.fill_(float("inf"))
    torch.nn.utils.clip_grad_value_(small.model.weight, 100.0)
    small._events.clear()
    torch.nan_to_num_(small.model.bias.grad, posinf=0.0)
    [change] = small.notice()
    assert (change["event"], change["parameters"], change["factor"]) == ("gradient_change", [1], "nan")


@pytest.mark.parametrize("change", [halve, replace_by_half])
def test_a_change_in_a_large_model(large, change):
    """Its values are not read, so there is no factor."""
    large.backward()
    change(next(large.model.parameters()))
    [event] = large.notice()
    assert (event["parameters"], event["factor"]) == ([0], None)
    large.backward()
    assert large.notice() == []


def test_a_change_in_a_model_of_many_layers():
    """Some trained parameters stand for all."""
    events = []
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(20)))
    model[:10].requires_grad_(False)
    with Recorder(events.append) as recorder:
        recorder.watch(model)
        model(torch.ones(1, 64)).sum().backward()
        for parameter in model[10:].parameters():
            parameter.grad /= 2
        model.zero_grad()
    [change] = [event for event in events if event["event"] == "gradient_change"]
    assert 4 <= len(change["parameters"]) <= 8
    assert min(change["parameters"]) == 20
    assert max(change["parameters"]) > 35


def test_gradients_before_a_backward_of_a_large_model(large):
    states = []
    for clear in (None, None, False, True):
        if clear is not None:
            large.model.zero_grad(set_to_none=clear)
        large.model(torch.ones(1, 2)).sum().backward()
        states += [event["gradients"] for event in large._events if event["event"] == "backward_begin"]
        large._events.clear()
    assert states == ["none", "some", "zero", "none"]


def test_sparse_gradients(record):
    """An embedding's sparse gradients have no address."""
    for size in (10, 5000):
        events = []
        with Recorder(events.append) as recorder:
            model = torch.nn.Embedding(size, 1, sparse=True)
            recorder.watch(model)
            optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
            for _ in range(2):
                model(torch.tensor([1, 3])).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
        assert [event["event"] for event in events if event["event"] == "gradient_change"] == []
        gradients = [event["gradients"] for event in events if event["event"] == "step"]
        assert gradients == [[0, 1, 0, 1, *[0] * 6] if size == 10 else None] * 2


def test_torchs_own_changes_are_explained(with_model):
    """Backward, unscaling, clipping, a fused step, and clearing are no changes by hand."""
    recording, model = with_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0625, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for unscale in (True, False):
        for batch in recording.task.dataloader():
            scaler.scale(recording.task.loss(model(batch.inputs), batch)).backward()
        if unscale:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=False)
    assert recording.of_kind("gradient_change") == []
    assert [event["by"] for event in recording.of_kind("zero_grad")] == ["optimizer"] * 2


def test_zeros_instead_of_no_gradient_clear_nothing(with_model):
    recording, model = with_model()
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    model.zero_grad()
    assert [event["event"] for event in recording.events if "grad" in event["event"]] == ["zero_grad"]
