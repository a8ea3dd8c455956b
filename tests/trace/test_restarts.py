"""Records of a resumed training: optimizer states, averages, checkpoint files."""

from __future__ import annotations

import copy
import pathlib
import pickle

import numpy as np
import pytest
import torch
from torch.optim.swa_utils import AveragedModel

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
def test_a_state_is_noted_after_each_step_before_a_stop(with_model, life, noted):
    recording, model = with_model(**life)
    trained(recording, model, recording.task.optimizer(model.parameters()), recording.task.windows())
    found = [event["event"] for event in recording.events if event["event"] in ("step", "optimizer_state")]
    assert sorted(found) == sorted(noted)


def test_a_state_is_noted_once_it_is_loaded(with_model):
    """A step before any backward only creates state to load into."""
    recording, model = with_model(resumed_at=1, life={**LIFE, "resume_from": "/nowhere"})
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


def test_a_state_is_noted_once_with_a_closure(with_model):
    recording, model = with_model(resumed_at=1, life={**LIFE, "resume_from": "/nowhere"})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.5)
    for window in recording.task.windows():

        def closure(window=window):
            return sum(recording.task.loss(model(batch.inputs), batch) for batch in window).backward()

        optimizer.step(closure)
    [event] = [event for event in recording.events if event["event"] == "optimizer_state"]
    assert [one["state"] for one in event["kept"]] == [{}, {}]


@pytest.mark.parametrize(("how", "is_watched"), [("unpickled", True), ("copied", False), ("of another class", False)])
def test_a_model_that_is_restored_as_a_whole(record, how, is_watched):
    """It may have any values, unlike a copy made in the process, which must have those of the task's model."""
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


def test_none_instead_of_a_state(with_model):
    """`ZeroRedundancyOptimizer.load_state_dict` leaves it for parameters that another rank steps."""
    recording, model = with_model(resumed_at=1, life={**LIFE, "resume_from": "/nowhere"})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for parameter in model.parameters():
        optimizer.state[parameter] = None
    optimizer.step()
    [event] = [event for event in recording.events if event["event"] == "optimizer_state"]
    assert [one["state"] for one in event["kept"]] == [{}, {}]


def written(record, folder, act):
    recording = record(resumed_at=1, life={**LIFE, "stop_after": 1, "save_after": [1], "checkpoint_dir": str(folder)})
    act(folder)
    return [event["path"] for event in recording.events if event["event"] == "save"]


@pytest.mark.parametrize(
    "act",
    [
        lambda folder: torch.save({}, folder / "one"),
        lambda folder: torch.save({}, str(folder / "one")),
        lambda folder: torch.save({}, folder / "one", _use_new_zipfile_serialization=False),
        lambda folder: (folder / "one").write_text("done"),
        lambda folder: pathlib.Path(folder / "one").write_bytes(b"done"),
        lambda folder: np.savez(str(folder / "one"), weight=np.ones(2)),
    ],
)
def test_files_written_from_their_start_are_saves(record, tmp_path, act):
    (folder := tmp_path / "saved").mkdir()
    assert written(record, folder, act) in (["one"], ["one.npz"])


def append(path):
    with open(path, "a") as file:
        file.write("a line")


@pytest.mark.parametrize(
    "act",
    [
        lambda folder: (folder.parent / "elsewhere").write_text("done"),
        lambda folder: torch.save({}, folder.parent / "elsewhere"),
        lambda folder: append(folder / "log"),
        lambda folder: (folder / "mark").touch(),
        lambda folder: torch.load(folder.parent / "before.pt"),
    ],
)
def test_other_files_are_no_saves(record, tmp_path, act):
    torch.save({}, tmp_path / "before.pt")
    (folder := tmp_path / "saved").mkdir()
    assert written(record, folder, act) == []


@pytest.mark.parametrize(
    ("act", "read"),
    [
        (lambda folder: torch.load(folder / "one"), ["one"]),
        (lambda folder: torch.load(str(folder / "one"), mmap=True), ["one"]),
        (lambda folder: (folder / "one").read_bytes(), ["one"]),
        (lambda folder: torch.load(folder.parent / "before.pt"), []),
        (lambda folder: (folder / "one").exists(), []),
        (lambda folder: append(folder / "log"), []),
    ],
)
def test_files_that_are_read_to_resume_are_loads(record, tmp_path, act, read):
    (folder := tmp_path / "saved").mkdir()
    torch.save({}, folder / "one")
    torch.save({}, tmp_path / "before.pt")
    recording = record(resumed_at=1, life={**LIFE, "resume_from": str(folder)})
    act(folder)
    found = [event["path"] for event in recording.events if event["event"] == "load"]
    assert list(dict.fromkeys(found)) == read


@pytest.mark.parametrize("life", [{"life": {**LIFE, "stop_after": 2}}, {}])
def test_updates_of_averages_are_noted_around_a_stop(with_model, life):
    recording, model = with_model(**life)
    averaged = AveragedModel(model)
    averaged.update_parameters(model)
    with torch.no_grad():
        model.weight += 1
    averaged.update_parameters(model)
    found = [event for event in recording.events if event["event"] == "average"]
    start = [*model.weight.detach().sub(1).flatten().tolist(), *model.bias.tolist()]
    halfway = [*model.weight.detach().sub(0.5).flatten().tolist(), *model.bias.tolist()]
    assert [(event["updates"], event["before"], event["after"]) for event in found] == (
        [(0, start, start), (1, start, halfway)] if life else []
    )
