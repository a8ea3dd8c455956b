"""FSDP2 over gloo, in two real ranks."""

from __future__ import annotations

from conformance.runner.front.client import ForkServer

from ..trainers.tasks import make_spec

TRAINERS = f"{__file__.rpartition('/')[0]}/trainers.py"


def test_fully_shard():
    """All-gathers carry parameters, reduce-scatters gradients, the latter once a window. Of what is sharded a rank
    reports what it holds whole: the first has the only row of the weight."""
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
