"""Autocast regions."""

from __future__ import annotations

import pytest
import torch

from .places import here


def regions(recording):
    return [(event["event"], event["device"], event["dtype"], event["enabled"]) for event in recording.events]


def test_a_region(record):
    recording = record()
    with torch.autocast("cpu", dtype=torch.float16):
        place = here(-1)
        assert torch.is_autocast_enabled("cpu")
    assert regions(recording) == [(f"autocast_{end}", "cpu", "float16", True) for end in ("enter", "exit")]
    assert [event["where"] for event in recording.events] == [place, place]


def test_a_decorator_and_a_subclass(record):
    recording = record()

    @torch.amp.autocast_mode.autocast("cpu", dtype=torch.bfloat16)
    def decorated():
        pass

    class Own(torch.autocast):
        def __enter__(self):
            return super().__enter__()

    decorated()
    with Own("cpu"):
        pass
    assert [event for event, *_ in regions(recording)] == ["autocast_enter", "autocast_exit"] * 2


def test_a_disabled_one(record):
    recording = record()
    with torch.autocast("cpu", enabled=False):
        pass
    assert regions(recording) == []


def test_an_error_in_it(record):
    recording = record()
    with pytest.raises(MemoryError), torch.autocast("cpu"):
        raise MemoryError
    assert [event for event, *_ in regions(recording)] == ["autocast_enter", "autocast_exit"]
    assert not torch.is_autocast_enabled("cpu")
