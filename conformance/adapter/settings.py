"""What the task's optimizer, schedule and loss scaler are made with, for frameworks that make their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from conformance.workloads.plan import Spec


@dataclass(frozen=True)
class GroupSettings:
    """One parameter group.

    arguments: by the names of torch's optimizer, the learning rate before its schedule among them.
    learning_rates: one for each optimizer step that is not skipped, or for each epoch where `task.schedule_by` is
    "epoch".
    """

    arguments: Mapping[str, Any]
    learning_rates: tuple[float, ...]


@dataclass(frozen=True)
class OptimizerSettings:
    """kind: torch's SGD, AdamW or Adagrad.

    groups: one or, where vectors and scalars have settings of their own, two (all else; vectors and scalars) or three
    (all else; vectors; scalars).
    """

    kind: Literal["sgd", "adamw", "adagrad"]
    groups: tuple[GroupSettings, ...]

    @property
    def arguments(self) -> dict[str, Any]:
        """Those of the first group, as `torch.optim.SGD(params, **arguments)` takes them."""
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
    """Those of a case."""
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
