"""Running averages of weights, in cases that are resumed."""

from __future__ import annotations

import pytest
import torch
from torch.optim.swa_utils import AveragedModel

LIFE = {"stop_after": 2, "checkpoint_dir": None, "save_after": [2], "resume_from": None}


@pytest.mark.parametrize("life", [{"life": LIFE}, {}])
def test_updates_are_noted_around_a_stop(record, life):
    recording = record(**life)
    model = recording.task.model()
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
