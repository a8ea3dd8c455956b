"""The recorder reads calls in a backward pass, in the step of a base class, and in compiled code."""

import warnings

import pytest
import torch
from torch._dynamo.utils import counters
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

import conformance
from conformance.watch import records
from conformance.watch.record_lines import decoded, encoded
from conformance.watch.recording.output import Later, later, settle

from .trained import records_in


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
def test_a_call_in_a_hook_has_the_number_of_its_backward_pass(tmp_path, call, kind, is_in_hook):
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


def test_autograd_grad_is_no_backward_pass(tmp_path):
    model = torch.nn.Linear(3, 1)
    with records_in(tmp_path) as found:
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        loss = model(torch.ones(2, 3)).sum()
        loss.register_hook(lambda _: optimizer.zero_grad())
        torch.autograd.grad(loss, [*model.parameters()])
    assert [one.within for one in found if isinstance(one, records.Cleared)] == [None]


def halve(optimizer):
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad.mul_(0.5)


def classes():
    """New classes each time, because torch and the recorder patch them."""

    class Base(torch.optim.RAdam):
        def step(self, closure=None):
            halve(self)
            return super().step(closure)

    class Inner(Base):
        def step(self, closure=None):
            halve(self)
            return super().step(closure)

    class Twice(torch.optim.RAdam):
        def step(self, closure=None):
            halve(self)
            super().step()
            halve(self)
            return super().step()

    class Own(torch.optim.Optimizer):
        def __init__(self, parameters, rate):
            super().__init__(parameters, {"lr": rate})

        def step(self, closure=None):
            halve(self)

    class OfOwn(Own):
        def step(self, closure=None):
            halve(self)
            return super().step(closure)

    return {kind.__name__: kind for kind in (Base, Inner, Twice, Own, OfOwn)}


@pytest.mark.parametrize("is_hooked", [False, True])
@pytest.mark.parametrize(
    ("name", "share", "is_own"),
    [
        ("Base", 0.5, False),
        ("Inner", 0.25, False),
        ("Twice", 0.5, False),
        ("Own", 1.0, True),
        ("OfOwn", 0.5, True),
    ],
)
def test_gradients_are_read_in_the_innermost_step(tmp_path, monkeypatch, name, share, is_own, is_hooked):
    """is_hooked: the base class has had an instance, so torch also calls hooks in its step."""
    step = vars(torch.optim.RAdam)["step"]
    monkeypatch.setattr(torch.optim.RAdam, "step", step.__wrapped__ if hasattr(step, "hooked") else step)
    kind = classes()[name]
    model = torch.nn.Linear(3, 1, bias=False)
    if is_hooked:
        torch.optim.RAdam(model.parameters())
    with records_in(tmp_path) as found:
        optimizer = kind(model.parameters(), 0.1)
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(1, 3)).sum().backward()
            optimizer.step()
    steps = [one for one in found if isinstance(one, records.Stepped)]
    assert [one.is_own for one in steps] == [is_own] * 2
    assert [round(float(one.gradients[0][2]) / 3**0.5, 6) for one in steps] == [share] * 2


@pytest.mark.parametrize("is_made", [False, True])
def test_the_step_of_the_base_is_restored(tmp_path, is_made):
    class Plain(torch.optim.Optimizer):
        def __init__(self, parameters, rate):
            super().__init__(parameters, {"lr": rate})

        def step(self, closure=None):
            pass

    class Derived(Plain):
        def step(self, closure=None):
            return super().step(closure)

    before = vars(Plain)["step"]
    parameter, called = torch.nn.Parameter(torch.ones(1)), []
    with records_in(tmp_path):
        Derived([parameter], 0.1).step()
        plain = Plain([parameter], 0.1) if is_made else None
    if plain is None:
        assert vars(Plain)["step"] is before
    else:
        plain.register_step_pre_hook(lambda *_: called.append(1))
        plain.step()
        assert called == [1]


def test_tensors_on_the_cpu_are_read_immediately():
    value = torch.tensor(2.0)
    read = later(float, value)
    value.mul_(2)
    assert read == 2.0


def test_tensors_on_other_devices_are_read_later():
    assert isinstance(later(float, torch.ones((), device="meta")), Later)


def test_delayed_tensors_are_read_when_the_record_is_written():
    record = records.Clipped("norm", [0], 1.0, Later(float, torch.tensor(3.0)), 1, None)
    settle(record)
    assert record == records.Clipped("norm", [0], 1.0, 3.0, 1, None)
    assert decoded(encoded(record).encode()) == record


def function(model, inputs):
    return torch.compile(lambda: model(inputs).square().mean(), backend="eager", fullgraph=True)


def method(model, inputs):
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    return lambda: compiled(inputs).square().mean()


def exported(model, inputs):
    def loss():
        with torch.no_grad():
            torch.export.export(model, (inputs,), strict=True)
        return model(inputs).square().mean()

    return loss


def graphs(way):
    """The number of graphs that torch compiles."""
    torch._dynamo.reset()
    counters.clear()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Linear(5, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = way(model, torch.randn(8, 6))
    for _ in range(3):
        loss().backward()
        optimizer.step()
        optimizer.zero_grad()
    return counters["stats"]["unique_graphs"]


@pytest.mark.parametrize("way", [function, method, exported])
def test_a_watch_does_not_change_compilation(way):
    plainly = graphs(way)
    with warnings.catch_warnings(), conformance.watching():
        warnings.simplefilter("error")
        watched = graphs(way)
    assert watched == plainly
