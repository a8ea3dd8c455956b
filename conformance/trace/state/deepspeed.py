"""DeepSpeed's ZeRO: which part of each parameter's master a rank steps, as its optimizers keep it for checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from conformance.trace.state.parts import Part, Parted
from conformance.trace.state.watched import Watched

WRAPPERS = {
    "deepspeed.runtime.zero.stage_1_and_2": "DeepSpeedZeroOptimizer",
    "deepspeed.runtime.zero.stage3": "DeepSpeedZeroOptimizer_Stage3",
    "deepspeed.runtime.bf16_optimizer": "BF16_Optimizer",
}
"""The classes around an optimizer that step flat tensors, by their modules."""


def parted(wrapper: Any, watched: Watched) -> Parted | None:
    """Its optimizer, shown as one of parts of the watched model; None if it steps nothing of that."""
    try:
        parts = {id(parameter): part for parameter, part in _stepped(wrapper)}
    except (AttributeError, ValueError):
        # Another version keeps them in another way; then the weights that forwards use are compared.
        return None
    model = next((found for key in parts if (found := watched.model_of(key))), ())
    if not model:
        return None
    optimizer = Parted(wrapper.optimizer, [parts.get(id(one)) or _frozen(one) for one in model if one is not None])
    watched.stepped_in_parts(model, optimizer.tensors)
    return optimizer


def loss_scale(wrapper: Any) -> float | None:
    """The loss scale; None where losses are not scaled."""
    return float(wrapper.loss_scale) if getattr(wrapper, "dtype", None) == torch.float16 else None


def has_skipped(wrapper: Any) -> bool:
    """Whether it has left its last step out, because of an overflow."""
    return bool(getattr(wrapper, "overflow", False))


def _stepped(wrapper: Any) -> Iterator[tuple[torch.Tensor, Part]]:
    if hasattr(wrapper, "sub_group_to_group_id"):
        for subgroup, parameters in enumerate(wrapper.fp16_groups):
            flat, group = wrapper.fp32_partitioned_groups_flat[subgroup], wrapper.sub_group_to_group_id[subgroup]
            for parameter in parameters:
                _, start, _ = wrapper.grad_position[wrapper.get_param_id(parameter)]
                yield parameter, _of_stage_3(parameter, flat, start, group)
        return
    groups = wrapper.bit16_groups if hasattr(wrapper, "bit16_groups") else wrapper.bf16_groups
    for group, parameters in enumerate(groups):
        [flat] = wrapper.optimizer.param_groups[group]["params"]
        for parameter in parameters:
            mapping, size = parameter._hp_mapping, parameter.numel()
            if mapping is None:
                yield parameter, Part(flat, 0, 0, 0, size, group)
            else:
                own, model = mapping.hp_fragment_address, mapping.lp_fragment_address
                yield parameter, Part(flat, own.start, own.numel, model.start, size, group)


def _frozen(parameter: torch.Tensor) -> Part:
    if hasattr(parameter, "ds_tensor"):
        return _of_stage_3(parameter, parameter.ds_tensor, 0, None)
    return Part(parameter, 0, parameter.numel(), 0, parameter.numel(), None)


def _of_stage_3(parameter: Any, flat: torch.Tensor, start: int, group: int | None) -> Part:
    """The rank's part of a parameter, which is split into equal parts; the last ones may be shorter or empty."""
    most, size = parameter.ds_tensor.ds_numel, parameter.ds_numel
    at = min(most * torch.distributed.get_rank(parameter.ds_process_group), size)
    return Part(flat, start, min(most, size - at), at, size, group)
