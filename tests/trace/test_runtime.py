"""Autocast, compiled code and forked processes."""

from __future__ import annotations

import os

import pytest
import torch

from .places import here


def regions(recording):
    return [(event["event"], event["device"], event["dtype"], event["enabled"]) for event in recording.events]


def test_an_autocast(record):
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


def test_a_disabled_autocast(record):
    recording = record()
    with torch.autocast("cpu", enabled=False):
        pass
    assert regions(recording) == []


def test_an_error_in_an_autocast(record):
    recording = record()
    with pytest.raises(MemoryError), torch.autocast("cpu"):
        raise MemoryError
    assert [event for event, *_ in regions(recording)] == ["autocast_enter", "autocast_exit"]
    assert not torch.is_autocast_enabled("cpu")


@pytest.fixture(autouse=True)
def forget():
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("fullgraph", [False, True])
def test_a_compiled_model(with_model, fullgraph):
    """The forward is seen, and the recorder is not compiled: the graph breaks once, at the recorder."""
    recording, model = with_model()
    compiled = torch.compile(model, backend="eager", fullgraph=fullgraph)
    compiled(torch.zeros(4, 2)).sum().backward()
    assert recording.kinds("forward", "backward_begin") == ["forward", "backward_begin"]
    [reason] = torch._dynamo.utils.counters["graph_break"]
    assert "skip reason: file is under skip directory" in reason and "conformance/trace/" in reason


def test_without_a_recorder(record):
    """The compiler works as before: it compiles the whole model, and refuses to break a full graph."""
    recorder = record().recorder
    model = torch.nn.Linear(3, 1)
    recorder.__exit__(None, None, None)
    torch.compile(model, backend="eager", fullgraph=True)(torch.zeros(4, 3))
    assert not torch._dynamo.utils.counters["graph_break"]
    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(lambda x: torch._dynamo.graph_break() or x, backend="eager", fullgraph=True)(torch.zeros(1))
    recorder.__enter__()


@pytest.mark.parametrize(("process", "expected"), [(4711, ["fork"]), (0, [])], ids=["trainer", "child"])
def test_a_fork_is_noted_in_the_process_that_forks(record, monkeypatch, process, expected):
    monkeypatch.setattr(os, "fork", lambda: process)
    recording = record()
    assert os.fork() == process
    assert [event["event"] for event in recording.events] == expected
