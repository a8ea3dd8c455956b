"""The steps of a workload in doubles, which hold the small dyadic numbers of its data exactly; many runs at a time."""

from __future__ import annotations

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
    momentum, decay = float(spec.momentum), float(spec.weight_decay)
    if settings.clip and settings.clip.kind == "value":
        gradients = np.clip(gradients, -float(settings.clip.threshold), float(settings.clip.threshold))
    owners = settings.model.tensor_of if element is None else settings.model.tensor_of[element]
    in_group = np.array([tensor.group for tensor in settings.model.tensors])[np.array(owners)]
    decays, factors = np.full(in_group.shape, decay), np.ones(in_group.shape)
    for number, group in enumerate(settings.groups, start=1):
        decays[in_group == number], factors[in_group == number] = float(group.weight_decay), float(group.lr / spec.lr)
    gradients = gradients + decays * state.weights
    taken = 1 - float(spec.dampening) if state.steps and momentum else 1.0
    buffer = momentum * state.buffer + taken * gradients
    move = gradients + momentum * buffer if spec.nesterov else buffer
    rate = float(spec.lr * (settings.schedule[state.steps] if settings.schedule else 1)) * factors
    return State(state.weights - rate * move, buffer, state.steps + 1)


def vector(values: Floats) -> Vector:
    """The exact values."""
    return tuple(map(Fraction, values.tolist()))
