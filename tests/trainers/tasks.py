"""Task specs made by hand, and the weights that they must lead to, in plain float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

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


def adamw(**changes: Any) -> dict[str, Any]:
    """AdamW with torch's defaults, but for the learning rate."""
    return {"kind": "adamw", "lr": 0.125, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.01, **changes}


def scaler(**changes: Any) -> dict[str, float | int]:
    """A GradScaler that keeps its scale, unless a gradient overflows."""
    return {
        "init_scale": 1024.0,
        "growth_factor": 2.0,
        "backoff_factor": 0.5,
        "growth_interval": 1000,
        **changes,
    }


WORKLOADS: dict[str, dict[str, Any]] = {
    "plain": {},
    "decay": {"optimizer": sgd(weight_decay=0.125, dampening=0.25)},
    "nesterov": {"optimizer": sgd(nesterov=True)},
    "adamw": {"optimizer": adamw()},
    "schedule": {"schedule": [1.0, 0.5, 0.25]},
    "clip-norm": {"clip": {"kind": "norm", "threshold": 1.0}},
    "clip-value": {"clip": {"kind": "value", "threshold": 0.5}},
    "weighted": {"loss": "weighted"},
}
"""Changes to a spec, each of which a loop can get wrong on its own."""


def overflowing(**shape: Any) -> Spec:
    """A spec of three windows, of which the first overflows in fp16, on the rank that reads sample 3."""
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


TOLERANCE = {"fp64": 1e-12, "fp32": 1e-6, "bf16": 2e-2, "fp16": 2e-3, "fp16-compression": 2e-3}


def check(spec: Spec, events: Sequence[dict[str, Any]], skipped: frozenset[int] = frozenset()) -> None:
    """Gradients and weights of every step are those of the formulas; the trainer finished."""
    gradients, weights = trajectory(spec, skipped)
    steps = of_kind(events, "step")
    tolerance = TOLERANCE[spec["precision"]]
    assert len(steps) == len(weights)
    for step, gradient, weight in zip(steps, gradients, weights, strict=True):
        assert step["gradients"] == pytest.approx(gradient, rel=10 * tolerance, abs=10 * tolerance)
        assert step["weights"] == pytest.approx(weight, rel=tolerance, abs=tolerance)
    assert events[-1]["event"] == "finished"
    assert events[-1]["weights"] == steps[-1]["weights"]


def trajectory(spec: Spec, skipped: frozenset[int] = frozenset()) -> tuple[list[list[float]], list[list[float]]]:
    """Gradients and weights of each step that is taken, when all ranks and micro-batches act as one batch.

    Windows in `skipped` take no step. Plain formulas of torch's documentation for SGD and AdamW, in float64.
    """
    x, y = np.array(spec["samples"]["x"]), np.array(spec["samples"]["y"])
    weight = np.array(spec["samples"]["weight"]) if spec["loss"] == "weighted" else np.ones(len(y))
    if spec["model"]["bias"]:
        x = np.hstack([x, np.ones((len(y), 1))])
    w = np.array(spec["model"]["weights"][0])
    state: dict[str, Any] = {"step": 0}
    gradients, weights = [], []
    for number, window in enumerate(_windows(spec)):
        if number in skipped:
            continue
        residual = x[window] @ w - y[window]
        gradient = 2 * (weight[window] * residual) @ x[window] / weight[window].sum()
        gradient = _clipped(gradient, spec["clip"])
        schedule = spec["schedule"] or [1.0]
        multiplier = schedule[min(state["step"], len(schedule) - 1)]
        w = _stepped(w, gradient, spec["optimizer"], multiplier, state)
        gradients.append(gradient.tolist())
        weights.append(w.tolist())
    return gradients, weights


def _windows(spec: Spec) -> list[list[int]]:
    length = spec["accumulation"]
    shares = [[share[start : start + length] for start in range(0, len(share), length)] for share in spec["orders"][0]]
    return [
        [index for share in ranks for micro_batch in share for index in micro_batch]
        for ranks in zip(*shares, strict=True)
    ]


def _clipped(gradient: NDArray[np.float64], clip: dict[str, Any] | None) -> NDArray[np.float64]:
    if clip is None:
        return gradient
    if clip["kind"] == "value":
        return gradient.clip(-clip["threshold"], clip["threshold"])
    return gradient * min(1.0, clip["threshold"] / (float(np.linalg.norm(gradient)) + 1e-6))


def _stepped(
    w: NDArray[np.float64],
    gradient: NDArray[np.float64],
    optimizer: dict[str, Any],
    multiplier: float,
    state: dict[str, Any],
) -> NDArray[np.float64]:
    lr = optimizer["lr"] * multiplier
    decay = optimizer["weight_decay"]
    state["step"] += 1
    if optimizer["kind"] == "adamw":
        beta1, beta2 = optimizer["betas"]
        w = w - lr * decay * w
        state["m"] = beta1 * state.get("m", 0.0) + (1 - beta1) * gradient
        state["v"] = beta2 * state.get("v", 0.0) + (1 - beta2) * gradient**2
        m, v = state["m"] / (1 - beta1 ** state["step"]), state["v"] / (1 - beta2 ** state["step"])
        return w - lr * m / (np.sqrt(v) + optimizer["eps"])
    gradient = gradient + decay * w
    if "buffer" in state:
        gradient_in = (1 - optimizer["dampening"]) * gradient
        state["buffer"] = optimizer["momentum"] * state["buffer"] + gradient_in
    else:
        state["buffer"] = gradient
    nesterov = gradient + optimizer["momentum"] * state["buffer"]
    return w - lr * (nesterov if optimizer["nesterov"] else state["buffer"])
