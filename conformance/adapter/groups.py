"""The parameter groups of the task's optimizer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from conformance.adapter.settings import GroupSettings
from conformance.adapter.unsupported import UnsupportedGroups
from conformance.workloads.model import Model, group_of


def parameter_groups(
    params: Any, groups: Sequence[GroupSettings], model: Model, world_size: int
) -> list[dict[str, Any]]:
    """The groups of `params`, anything that a torch optimizer takes, each divided into the workload's `groups`.

    The first of these has all tensors that cannot be parameters.

    Raises `UnsupportedGroups` if one of these may hold all parameters, or one rank's share of them.
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
                    f"this case has {len(groups)} parameter groups, and `task.optimizer` is given one tensor of "
                    f"{tensor.numel()} elements in place of the model's parameters; a trainer that steps a flat one "
                    "declares it: `@trainer(parameter_groups=[1])`"
                )
            divided[group_of(tensor.ndim, len(groups)) if is_known else 0].append(one)
        for number, members in sorted(divided.items()):
            found.append({**groups[number].arguments, **group, "params": members})
    return found


def number_of(params: Iterable[torch.Tensor], groups: int) -> int:
    """The number of the workload's group that these parameters are in; 0 if they are of several."""
    numbers = {group_of(one.ndim, groups) for one in params}
    return numbers.pop() if len(numbers) == 1 else 0
