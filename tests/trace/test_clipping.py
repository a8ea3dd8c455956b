"""Clipping by torch's functions, however the trainer came by them."""

from __future__ import annotations

import pytest
import torch
from torch.nn.utils import clip_grad_norm_, clip_grad_value_, clip_grads_with_norm_, get_total_norm

from .places import here


@pytest.fixture
def recording(record):
    return record()


@pytest.fixture
def model(recording):
    """With gradients 3, 0, 4: of norm 5."""
    model = recording.task.model()
    model.weight.grad = torch.tensor([[3.0, 0.0]])
    model.bias.grad = torch.tensor([4.0])
    recording.recorder.accounted()
    recording.events.clear()
    return model


def test_by_norm(recording, model):
    """The function was imported by name when the recorder was not on yet."""
    norm = clip_grad_norm_(model.parameters(), 2.5)
    place = here(-1)
    [clip] = recording.events
    assert (clip["event"], clip["kind"], clip["threshold"], clip["norm_type"]) == ("clip", "norm", 2.5, 2.0)
    assert (clip["norm"], clip["parameters"], clip["gradients"]) == (5.0, [0, 1], [3.0, 0.0, 4.0])
    assert clip["where"] == place
    assert norm == 5.0
    assert model.bias.grad.item() == pytest.approx(2.0)


def test_through_the_module(recording, model):
    torch.nn.utils.clip_grad_norm_(parameters=model.parameters(), max_norm=1, norm_type="inf")
    [clip] = recording.events
    assert (clip["threshold"], clip["norm_type"], clip["norm"]) == (1.0, "inf", 4.0)


def test_by_value(recording, model):
    clip_grad_value_(list(model.parameters()), clip_value=2)
    [clip] = recording.events
    assert (clip["kind"], clip["threshold"], clip["norm_type"], clip["norm"]) == ("value", 2.0, None, None)
    assert model.bias.grad.item() == 2.0


def test_with_a_norm_that_is_known(recording, model):
    clip_grads_with_norm_(model.parameters(), 2.5, total_norm=torch.tensor(10.0))
    [clip] = recording.events
    assert (clip["kind"], clip["threshold"], clip["norm"], clip["norm_type"]) == ("norm", 2.5, 10.0, None)
    assert model.bias.grad.item() == pytest.approx(1.0)


def test_a_norm_for_inspection(recording, model):
    norm = get_total_norm([parameter.grad for parameter in model.parameters()])
    place = here(-1)
    [event] = recording.events
    assert (event["event"], event["norm"], event["parameters"]) == ("norm", 5.0, [0, 1])
    assert event["where"] == place
    assert norm == 5.0


def test_a_part_of_the_model(recording, model):
    clip_grad_norm_(model.bias, 1.0)
    get_total_norm(model.weight.grad)
    assert [(event["event"], event["parameters"]) for event in recording.events] == [("clip", [1]), ("norm", [0])]
    assert recording.events[0]["gradients"] == [None, None, 4.0]


def test_another_model(recording, model):
    other = torch.nn.Linear(3, 3)
    other(torch.ones(1, 3)).sum().backward()
    recording.events.clear()
    clip_grad_norm_(other.parameters(), 1.0)
    get_total_norm([other.weight.grad])
    assert recording.events == []


def test_gradients_that_are_not_finite(recording, model):
    model.bias.grad.fill_(float("inf"))
    with pytest.raises(RuntimeError, match="non-finite"):
        clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
    clip_grad_norm_(model.parameters(), 1.0)
    [clip] = [event for event in recording.events if event["event"] == "clip"]
    assert clip["norm"] == "inf"


def test_an_empty_generator_is_warned_of(recording):
    with pytest.warns(UserWarning, match="empty generator"):
        clip_grad_norm_(iter_nothing(), 1.0)


def iter_nothing():
    yield from ()
