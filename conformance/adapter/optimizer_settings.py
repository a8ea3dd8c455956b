"""The settings of the task's optimizer, parameter groups, schedule, clip, average and loss scaler."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from conformance.adapter.declaration import UnsupportedGroups
from conformance.workloads.model import Model, group_of
from conformance.workloads.reading_plan import Spec


@dataclass(frozen=True)
class ClipSpec:
    """How to clip gradients: `kind` "norm" or "value", at `threshold`."""

    kind: Literal["norm", "value"]
    threshold: float


@dataclass(frozen=True)
class AverageSpec:
    """How to average weights: `kind` "ema" with this `decay`, or "swa"; as `torch.optim.swa_utils` does."""

    kind: Literal["ema", "swa"]
    decay: float | None = None


@dataclass(frozen=True)
class GroupSettings:
    """One parameter group.

    arguments: by the names of torch's optimizer, including the learning rate before its schedule.
    learning_rates: one for each optimizer step that is not skipped, or for each epoch if `task.schedule_by` is
    "epoch".
    """

    arguments: Mapping[str, Any]
    learning_rates: tuple[float, ...]


@dataclass(frozen=True)
class OptimizerSettings:
    """kind: torch's SGD, AdamW or Adagrad.

    groups: one or, if vectors and scalars have their own settings, two (all else; vectors and scalars) or three (all
    else; vectors; scalars).
    """

    kind: Literal["sgd", "adamw", "adagrad"]
    groups: tuple[GroupSettings, ...]

    @property
    def arguments(self) -> dict[str, Any]:
        """The first group's arguments, as for `torch.optim.SGD(params, **arguments)`."""
        return dict(self.groups[0].arguments)


@dataclass(frozen=True)
class LossScaling:
    """By the names of `torch.amp.GradScaler`: the scale grows by `growth_factor` after `growth_interval` steps in a row
    without an overflow, and is multiplied by `backoff_factor` after an overflow."""

    init_scale: float
    growth_factor: float
    backoff_factor: float
    growth_interval: int


def optimizer_settings(spec: Spec) -> OptimizerSettings:
    """The settings of a case."""
    first = dict(spec["optimizer"])
    kind = first.pop("kind")
    if "betas" in first:
        first["betas"] = tuple(first["betas"])
    count = spec["steps"] if spec.get("schedule_by", "step") == "step" else len(spec["epochs"])
    groups = []
    for further in ({}, *spec["groups"]):
        own = dict(further)
        schedule = own.pop("schedule", None) or spec["schedule"] or [1.0] * count
        arguments = {**first, **own}
        groups.append(GroupSettings(arguments, tuple(arguments["lr"] * multiplier for multiplier in schedule[:count])))
    return OptimizerSettings(kind, tuple(groups))


def parameter_groups(
    params: Any, groups: Sequence[GroupSettings], model: Model, world_size: int
) -> list[dict[str, Any]]:
    """Divides `params`, anything that a torch optimizer accepts, into the workload's `groups`.

    Tensors with shapes that no parameter has go into the first of these.

    Raises `UnsupportedGroups` if such a tensor may be all parameters, or one rank's share of them.
    """
    given = list(params)
    shapes = {tensor.shape for tensor in model.tensors}
    found = []
    for group in given if given and isinstance(given[0], dict) else [{"params": given}]:
        own = group["params"]
        divided = defaultdict[int, list[Any]](list)
        for one in [own] if isinstance(own, torch.Tensor) else own:
            # A parameter may come with its name.
            tensor = one[-1] if isinstance(one, tuple) else one
            is_known = tuple(tensor.shape) in shapes
            if not is_known and tensor.numel() * world_size >= model.size:
                raise UnsupportedGroups(
                    f"this case has {len(groups)} parameter groups, but `task.optimizer` got one tensor of "
                    f"{tensor.numel()} elements instead of the model's parameters; if the trainer steps a flat one, "
                    "add `@trainer(parameter_groups=[1])`"
                )
            divided[group_of(tensor.ndim, len(groups)) if is_known else 0].append(one)
        for number, members in sorted(divided.items()):
            found.append({**groups[number].arguments, **group, "params": members})
    return found


def number_of(params: Iterable[torch.Tensor], groups: int) -> int:
    """The number of the workload's group of these parameters; 0 if they are in several."""
    numbers = {group_of(one.ndim, groups) for one in params}
    return numbers.pop() if len(numbers) == 1 else 0
