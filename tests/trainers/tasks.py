"""Task specs made by hand, and one rank that trains in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from conformance.adapter.task import Task
from conformance.trace.hindsight.placing import placed
from conformance.trace.recorder import Recorder

Spec = dict[str, Any]
Events = list[dict[str, Any]]

X = [[1.0, 2.0], [2.0, -1.0], [-1.0, 1.0], [2.0, 2.0], [1.0, -2.0], [-2.0, 1.0], [1.0, 1.0], [2.0, 1.0]]
Y = [3.0, 1.0, -2.0, 4.0, -1.0, 2.0, -3.0, -4.0]
WEIGHT = [1.0, 0.0, 3.0, 2.0, 1.0, 0.0, 1.0, 4.0]


def make_spec(*, world_size: int = 1, accumulation: int = 1, size: int = 8, steps: int = 2, **changes: Any) -> Spec:
    """A spec of `steps` windows over 8 * steps distinguishable samples, in micro-batches of `size`.

    Micro-batch t of rank r is the stream's chunk number t * world_size + r. `changes` replace entries.
    """
    x = [[value + step / 2 for value in row] for step in range(steps) for row in X]
    spec = {
        "case": "by-hand",
        "backend": "single",
        "world_size": world_size,
        "accumulation": accumulation,
        "micro_batch_size": size,
        "steps": steps,
        "epochs": [0],
        "precision": "fp32",
        "loss": "mean",
        "device": "cpu",
        "model": {"kind": "linear", "features": 2, "bias": True, "weights": [[0.5, -0.5, 0.25]] * world_size},
        "samples": {"x": x, "y": Y * steps, "weight": WEIGHT * steps},
        "groups": [],
        "optimizer": sgd(),
        "schedule": None,
        "clip": None,
        "scaler": None,
    }
    chunks = [list(range(start, min(start + size, len(x)))) for start in range(0, len(x), size)]
    spec["orders"] = [[chunks[rank::world_size] for rank in range(world_size)]]
    return {**spec, **changes}


def sgd(**changes: Any) -> dict[str, Any]:
    """SGD with momentum."""
    settings = {"lr": 0.0625, "momentum": 0.5, "dampening": 0.0, "nesterov": False, "weight_decay": 0.0}
    return {"kind": "sgd", **settings, **changes}


def scaler(**changes: Any) -> dict[str, float | int]:
    """A GradScaler that keeps its scale, unless a gradient overflows."""
    return {
        "init_scale": 1024.0,
        "growth_factor": 2.0,
        "backoff_factor": 0.5,
        "growth_interval": 1000,
        **changes,
    }


def overflowing(**shape: Any) -> Spec:
    """A spec of three windows. The first overflows in fp16, on the rank that reads sample 3."""
    schedule = [1.0, 0.5, 0.25]
    spec = make_spec(**shape, steps=3, precision="fp16", scaler=scaler(), schedule=schedule)
    spec["samples"]["y"][3] = 30_000.0
    return spec


def train(function: Callable[[Task], None], spec: Spec, rank: int = 0) -> Events:
    """The events of one rank, run in this process."""
    events: Events = []
    with Recorder(events.append, spec, rank) as recorder:
        task = Task(spec, rank, recorder)
        function(task)
        recorder.finished()
    return placed(spec, rank, events)


def of_kind(events: Sequence[dict[str, Any]], kind: str) -> Events:
    """Those of one kind."""
    return [event for event in events if event["event"] == kind]
