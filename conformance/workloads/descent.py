"""The steps of a workload in doubles, which hold the small dyadic numbers of its data exactly; many runs at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

import numpy as np
import numpy.typing as npt

from conformance.workloads.model import Model
from conformance.workloads.workload import SGD, Clip, Group, Vector

Floats = npt.NDArray[np.float64]


class Settings(Protocol):
    """What a step depends on, as in :class:`conformance.workloads.workload.Workload`."""

    @property
    def optimizer(self) -> SGD: ...
    @property
    def model(self) -> Model: ...
    @property
    def groups(self) -> tuple[Group, ...]: ...
    @property
    def schedule(self) -> Vector | None: ...
    @property
    def clip(self) -> Clip | None: ...


@dataclass(frozen=True)
class State:
    """Weights and momentum buffers, shape (..., elements), after so many steps."""

    weights: Floats
    buffer: Floats
    steps: int = 0


def after(settings: Settings, gradients: Floats, state: State, element: int | None = None) -> State:
    """The state after one more step, without the clip if it is one by norm. ``element``: whose all numbers are."""
    spec = settings.optimizer
    if settings.clip and settings.clip.kind == "value":
        gradients = np.clip(gradients, -float(settings.clip.threshold), float(settings.clip.threshold))
    tensors = settings.model.tensors
    in_group = np.array([tensor.group(1 + len(settings.groups)) for tensor in tensors])[
        np.array(settings.model.tensor_of if element is None else settings.model.tensor_of[element])
    ]

    def of_elements(first: Fraction, of_group: Callable[[Group], Fraction | None]) -> Floats:
        """One setting of each element."""
        others = [of_group(group) for group in settings.groups]
        values = np.array([float(first), *(float(first if one is None else one) for one in others)])
        return np.asarray(values[in_group])

    def multiplier(schedule: Vector | None) -> Fraction:
        return schedule[state.steps] if schedule else Fraction(1)

    common = multiplier(settings.schedule)
    momentum = of_elements(spec.momentum, lambda group: group.momentum)
    rate = of_elements(
        spec.lr * common, lambda group: group.lr * (multiplier(group.schedule) if group.schedule else common)
    )
    gradients = gradients + of_elements(spec.weight_decay, lambda group: group.weight_decay) * state.weights
    taken = np.where(momentum, 1 - float(spec.dampening), 1.0) if state.steps else 1.0
    buffer = momentum * state.buffer + taken * gradients
    move = gradients + momentum * buffer if spec.nesterov else buffer
    return State(state.weights - rate * move, buffer, state.steps + 1)


def vector(values: Floats) -> Vector:
    """The exact values."""
    return tuple(map(Fraction, values.tolist()))
