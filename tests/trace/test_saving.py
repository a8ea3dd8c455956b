"""Files in the folder of a checkpoint."""

import pathlib

import numpy as np
import pytest
import torch

LIFE = {"stop_after": 1, "save_after": [1], "resume_from": None}


def written(record, folder, act):
    recording = record(resumed_at=1, life={**LIFE, "checkpoint_dir": str(folder)})
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
def test_files_that_are_written_from_their_beginning(record, tmp_path, act):
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
def test_no_others(record, tmp_path, act):
    torch.save({}, tmp_path / "before.pt")
    (folder := tmp_path / "saved").mkdir()
    assert written(record, folder, act) == []
