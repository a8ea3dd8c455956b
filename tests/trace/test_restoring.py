"""What an optimizer holds and keeps around a stop."""

import copy
import pickle

import pytest
import torch

LIFE = {"stop_after": None, "checkpoint_dir": None, "save_after": [2], "resume_from": None}


def trained(recording, model, optimizer, windows):
    for window in windows:
        for batch in window:
            recording.task.loss(model(batch.inputs), batch).backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize(
    ("life", "noted"), [({"life": {**LIFE, "stop_after": 2}}, ["step", "optimizer_state"] * 2), ({}, ["step"] * 2)]
)
def test_noted_after_each_step_before_a_stop(record, life, noted):
    recording = record(**life)
    model = recording.task.model()
    trained(recording, model, recording.task.optimizer(model.parameters()), recording.task.windows())
    found = [event["event"] for event in recording.events if event["event"] in ("step", "optimizer_state")]
    assert sorted(found) == sorted(noted)


def test_noted_once_the_state_is_loaded(record):
    """A step before any backward only makes a state to load into."""
    recording = record(resumed_at=1, life={**LIFE, "resume_from": "/nowhere"})
    model = recording.task.model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.5, weight_decay=0.25)
    optimizer.step()
    for parameter in model.parameters():
        optimizer.state[parameter] = {"momentum_buffer": torch.ones_like(parameter), "mine": "words"}
    trained(recording, model, optimizer, recording.task.windows())
    first, second = [event for event in recording.events if event["event"] == "optimizer_state"]
    assert [one["state"] for one in first["kept"]] == [{}, {}]
    assert [one["state"] for one in second["kept"]] == [{"momentum_buffer": [1.0, 1.0]}, {"momentum_buffer": [1.0]}]
    weight, bias = second["kept"]
    assert (weight["parameter"], weight["values"], bias["parameter"]) == (0, [0.5, -0.5], 1)
    assert weight["settings"]["weight_decay"] == 0.25
    assert "lr" not in weight["settings"]


def test_noted_once_where_the_backward_is_in_a_closure(record):
    recording = record(resumed_at=1, life={**LIFE, "resume_from": "/nowhere"})
    model = recording.task.model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.5)
    for window in recording.task.windows():

        def closure(window=window):
            return sum(recording.task.loss(model(batch.inputs), batch) for batch in window).backward()

        optimizer.step(closure)
    [event] = [event for event in recording.events if event["event"] == "optimizer_state"]
    assert [one["state"] for one in event["kept"]] == [{}, {}]


@pytest.mark.parametrize(("how", "is_watched"), [("unpickled", True), ("copied", False), ("of another class", False)])
def test_a_model_that_is_restored_as_a_whole(record, how, is_watched):
    """Whatever its values are, where a copy that is made in the process must have those of the task's model."""
    saved = torch.nn.Linear(2, 1) if how != "of another class" else torch.nn.utils.skip_init(torch.nn.Bilinear, 1, 2, 1)
    recording = record(resumed_at=1, life={**LIFE, "resume_from": "/nowhere"})
    recording.task.model()
    model = copy.deepcopy(saved) if how == "copied" else pickle.loads(pickle.dumps(saved))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    optimizer.zero_grad()
    [batch, *_] = next(recording.task.windows())
    inputs = (batch.inputs[:, :1], batch.inputs) if how == "of another class" else (batch.inputs,)
    recording.task.loss(model(*inputs), batch).backward()
    optimizer.step()
    kinds = [event["event"] for event in recording.events]
    assert [kind in kinds for kind in ("forward", "step", "optimizer_state")] == [is_watched] * 3
    assert ("foreign_optimizer" in kinds) != is_watched


def test_none_in_place_of_a_state_is_none(record):
    """As `ZeroRedundancyOptimizer.load_state_dict` leaves it for parameters that another rank steps."""
    recording = record(resumed_at=1, life={**LIFE, "resume_from": "/nowhere"})
    model = recording.task.model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for parameter in model.parameters():
        optimizer.state[parameter] = None
    optimizer.step()
    [event] = [event for event in recording.events if event["event"] == "optimizer_state"]
    assert [one["state"] for one in event["kept"]] == [{}, {}]
