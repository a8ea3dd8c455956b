"""Steps of learning-rate schedulers."""

from __future__ import annotations

import pytest
import torch
from torch.optim import lr_scheduler

from .places import here


@pytest.fixture
def recording(record):
    return record()


@pytest.fixture
def optimizer(recording):
    return torch.optim.SGD(recording.task.model().parameters(), lr=1.0)


def steps(recording):
    fields = ("scheduler", "initial", "lr_before", "lr_after")
    return [tuple(event[field] for field in fields) for event in recording.of_kind("schedule")]


def test_a_scheduler(recording, optimizer):
    scheduler = lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    made = here(-1)
    optimizer.step()
    scheduler.step()
    stepped = here(-1)
    assert steps(recording) == [(0, True, [1.0], [1.0]), (0, False, [1.0], [0.5])]
    assert [event["where"] for event in recording.of_kind("schedule")] == [made, stepped]
    assert [event["optimizer"] for event in recording.of_kind("schedule")] == [0, 0]


def test_one_that_has_its_own_step(recording, optimizer):
    scheduler = lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
    scheduler.step(1.0)
    scheduler.step(2.0)
    assert steps(recording) == [(0, False, [1.0], [1.0]), (0, False, [1.0], [0.5])]


def test_one_that_calls_the_step_of_its_base(recording, optimizer):
    class Calling(lr_scheduler.ExponentialLR):
        def step(self, epoch=None):
            super().step(epoch)

    scheduler = Calling(optimizer, gamma=0.5)
    optimizer.step()
    scheduler.step()
    assert steps(recording) == [(0, True, [1.0], [1.0]), (0, False, [1.0], [0.5])]


def test_one_of_others(recording, optimizer):
    """The outermost alone is noted."""
    first, second = (lr_scheduler.ExponentialLR(optimizer, gamma=gamma) for gamma in (0.5, 0.25))
    scheduler = lr_scheduler.ChainedScheduler([first, second])
    optimizer.step()
    recording.events.clear()
    scheduler.step()
    assert steps(recording) == [(2, False, [1.0], [0.125])]


def test_groups_and_rates_in_tensors(recording):
    model = recording.task.model()
    groups = [{"params": [model.weight], "lr": torch.tensor(1.0)}, {"params": [model.bias], "lr": 0.5}]
    lr_scheduler.LambdaLR(torch.optim.SGD(groups), lambda step: 0.5)
    assert steps(recording) == [(0, True, [1.0, 0.5], [0.5, 0.25])]


def test_another_models(recording):
    lr_scheduler.StepLR(torch.optim.SGD(torch.nn.Linear(3, 3).parameters()), step_size=1)
    assert steps(recording) == []
