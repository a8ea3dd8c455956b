"""FSDP2 over gloo, in two real ranks."""

from __future__ import annotations

import pytest

from conformance.runner.front.client import ForkServer
from conformance.trace.hindsight.shards import joined

from ..trainers.tasks import make_spec

TRAINERS = f"{__file__.rpartition('/')[0]}/trainers.py"


def test_fully_shard():
    """All-gathers carry parameters, reduce-scatters gradients, the latter once a window. Of what is sharded a rank
    shows what it holds: the first has the only row of the weight."""
    spec = make_spec(world_size=2, accumulation=2, size=2, steps=2, backend="ddp")
    with ForkServer(f"{TRAINERS}:fully_sharded", backend="ddp") as server:
        outcome = server.run(spec, time_limit=60.0)
    assert [(rank.exit, rank.output) for rank in outcome.ranks] == [("exited 0", "")] * 2
    first, second = (rank.events for rank in outcome.ranks)
    for events in (first, second):
        collectives = [event for event in events if event["event"] == "collective" and event["phase"] == "training"]
        told = [(event["op"], event["of"], event["reduce"], event["during"]) for event in collectives]
        gather = ("_allgather_base_", "parameters", None)
        scatter = ("_reduce_scatter_base_", "gradients", "avg", "backward")
        assert [entry for entry in told if entry[0] != gather[0]] == [scatter] * 2
        assert {entry[:3] for entry in told if entry[0] == gather[0]} == {gather}
        assert {tuple(event["group"]) for event in collectives} == {(0, 1)}
        assert [event["event"] for event in events if event["event"] in ("forward", "step")] == [
            *("forward", "forward", "step"),
            *("forward", "forward", "step"),
        ]
        assert [event["parameters"] for event in events if event["event"] == "optimizer"] == [[0, 1]]
        assert [event["event"] for event in events if event["event"] == "gradient_change"] == []
    weights = [[event["weights"] for event in events if event["event"] == "step"] for events in (first, second)]
    assert all(isinstance(value, float) for values in weights[0] for value in values)
    assert weights[1] == [[None, None, None]] * 2
    held = [[event["held"] for event in events if event["event"] == "shards"] for events in (first, second)]
    assert held == [[[0, 1, 2]], [[]]]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_columns(precision):
    """Each rank has a column of the weight, and shows it in full precision though forwards use what was cast."""
    spec = make_spec(world_size=2, accumulation=2, size=2, steps=2, backend="fsdp2", precision=precision)
    with ForkServer("fsdp2", backend="fsdp2") as server:
        ranks = [rank.events for rank in server.run(spec, time_limit=60.0).ranks]
    held = [[event["held"] for event in events if event["event"] == "shards"] for events in ranks]
    assert held == [[[0, 2]], [[1]]]
    for events, places in zip(ranks, ([0, 2], [1]), strict=True):
        for step in (event for event in events if event["event"] == "step"):
            assert [at for at, value in enumerate(step["weights"]) if value is not None] == places
            assert [at for at, value in enumerate(step["gradients"]) if value is not None] == places
    steps, forwards = (
        [
            [event["weights"] for event in events if event["event"] == kind and event["weights"]]
            for events in joined(ranks)
        ]
        for kind in ("step", "forward")
    )
    assert steps[0] == steps[1]
    assert [used[-1] for used in forwards] == [steps[0][0]] * 2
