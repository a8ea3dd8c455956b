"""The steps of a workload in doubles, which represent its small dyadic numbers exactly; many runs at a time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from conformance.workloads.workload import SGD, Training, Vector

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class State:
    """Weights and momentum buffers, shape (..., elements), after a number of steps."""

    weights: Floats
    buffer: Floats
    steps: int = 0


def after(
    training: Training, gradients: Floats, state: State, element: int | None = None, in_epoch: int | None = None
) -> State:
    """The state after one more step. ``element``: the element of all numbers, if they have only one; then a clip by
    norm is left out. ``in_epoch``: the steps of an epoch, if schedules count epochs."""
    if training.clip and training.clip.kind == "value":
        gradients = np.clip(gradients, -float(training.clip.threshold), float(training.clip.threshold))
    if training.clip and training.clip.kind == "norm" and element is None:
        norms = np.linalg.norm(gradients, axis=-1, keepdims=True)
        gradients = gradients * np.minimum(1, float(training.clip.threshold) / np.maximum(norms, 1e-6))
    tensor_of, numbers = np.array(training.model.tensor_of), range(1 + len(training.groups))
    in_group = np.array([*map(training.group_of, range(len(training.model.tensors)))])[
        tensor_of if element is None else tensor_of[element]
    ]
    specs = [spec for spec in map(training.optimizer_of, numbers) if isinstance(spec, SGD)]
    schedules = [training.schedule_of(number) for number in numbers]
    entry = state.steps // (in_epoch or 1)

    def of_elements(of_groups: Iterable[Fraction]) -> Floats:
        """A setting of each element."""
        return np.asarray(np.array([*map(float, of_groups)])[in_group])

    momentum = of_elements(spec.momentum for spec in specs)
    rate = of_elements(
        spec.lr * (schedule[entry] if schedule else 1) for spec, schedule in zip(specs, schedules, strict=True)
    )
    gradients = gradients + of_elements(spec.weight_decay for spec in specs) * state.weights
    taken = np.where(momentum, 1 - float(specs[0].dampening), 1.0) if state.steps else 1.0
    buffer = momentum * state.buffer + taken * gradients
    move = gradients + momentum * buffer if specs[0].nesterov else buffer
    return State(state.weights - rate * move, buffer, state.steps + 1)


def vector(values: Floats) -> Vector:
    """The exact values."""
    return tuple(map(Fraction, values.tolist()))
