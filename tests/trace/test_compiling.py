"""torch.compile."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def forget():
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("fullgraph", [False, True])
def test_a_compiled_model(record, fullgraph):
    """The forward is seen, and nothing of the recorder is compiled: the graph breaks once, where it begins."""
    recording = record()
    model = recording.task.model()
    compiled = torch.compile(model, backend="eager", fullgraph=fullgraph)
    compiled(torch.zeros(4, 2)).sum().backward()
    assert recording.kinds("forward", "backward_begin") == ["forward", "backward_begin"]
    [reason] = torch._dynamo.utils.counters["graph_break"]
    assert "skip reason: file is under skip directory" in reason and "conformance/trace/" in reason


def test_without_a_recorder(record):
    """The compiler is as it was: it takes the whole model, and refuses to break a full graph."""
    recorder = record().recorder
    model = torch.nn.Linear(3, 1)
    recorder.__exit__(None, None, None)
    torch.compile(model, backend="eager", fullgraph=True)(torch.zeros(4, 3))
    assert not torch._dynamo.utils.counters["graph_break"]
    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(lambda x: torch._dynamo.graph_break() or x, backend="eager", fullgraph=True)(torch.zeros(1))
    recorder.__enter__()
