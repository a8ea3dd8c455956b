"""Reads DeepSpeed's ZeRO: the part of each parameter's master that a rank steps, as its optimizers keep it for
checkpoints, and the volume that its engine will send."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from conformance.trace.state.optimizer_state import Part, Parted
from conformance.trace.state.watched import Watched

WRAPPERS = {
    "deepspeed.runtime.zero.stage_1_and_2": "DeepSpeedZeroOptimizer",
    "deepspeed.runtime.zero.stage3": "DeepSpeedZeroOptimizer_Stage3",
    "deepspeed.runtime.bf16_optimizer": "BF16_Optimizer",
}
"""Wrappers around an optimizer of flat tensors: classes by module."""

_SETTINGS = frozenset(
    {
        *("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping"),
        *("zero_optimization", "zero_allow_untested_optimizer", "bf16", "fp16", "communication_data_type"),
        *("prescale_gradients", "gradient_predivide_factor", "optimizer", "scheduler", "steps_per_print"),
    }
)
_SETTINGS_OF_ZERO = frozenset(
    {
        *("stage", "overlap_comm", "contiguous_gradients", "round_robin_gradients", "sub_group_size"),
        *("reduce_bucket_size", "allgather_bucket_size"),
        *("stage3_param_persistence_threshold", "stage3_prefetch_bucket_size", "stage3_max_live_parameters"),
        *("stage3_max_reuse_distance", "stage3_gather_16bit_weights_on_model_save"),
    }
)
"""With only these settings, the values that `exchanges` reads determine the volume sent, though not its pieces."""


def exchanges(engine: Any, size: int) -> dict[str, Any] | None:
    """The fields of `conformance.trace.events.Zero` for an engine that trains all of a model of `size` elements; None
    if unsure: with other settings, other groups of ranks, or another version."""
    try:
        return _exchanges(engine, size)
    except (AttributeError, LookupError, RuntimeError, TypeError, ValueError):
        return None


def _exchanges(engine: Any, size: int) -> dict[str, Any] | None:
    settings, parameters = engine._config._param_dict, list(engine.module.parameters())
    is_known = settings.keys() <= _SETTINGS and settings.get("zero_optimization", {}).keys() <= _SETTINGS_OF_ZERO
    is_whole = engine.dp_world_size == torch.distributed.get_world_size() and not engine.has_moe_layers
    # Optimizers of DeepSpeed's runtime, such as 1-bit Adam and Muon, send more or less.
    is_plain = type(engine).__name__ == "DeepSpeedEngine" and not engine.basic_optimizer.__module__.startswith(
        "deepspeed.runtime."
    )
    if not (is_known and is_whole and is_plain and all(one.requires_grad for one in parameters)):
        return None
    stage, wrapper = int(engine.zero_optimization_stage()), engine.optimizer
    if stage == 0:
        # This wrapper splits its masters even in stage 0.
        if type(wrapper).__name__ == "BF16_Optimizer":
            return None
        groups, own, by, in_each = [parameters], [], engine, False
    elif stage == 3:
        # Parameters that do not persist are gathered repeatedly.
        if not all(one.ds_persist for one in parameters):
            return None
        groups, own, by, in_each = wrapper.fp16_groups, [one.ds_tensor for one in parameters], wrapper, True
    else:
        rank = torch.distributed.get_rank()
        groups, own = wrapper.bit16_groups, [parts[rank] for parts in wrapper.parallel_partitioned_bit16_groups]
        by, in_each = wrapper, bool(wrapper.partition_gradients)
    if sum(_length(one) for group in groups for one in group) != size:
        return None
    [weight_width] = {one.element_size() for one in own or parameters}
    return {
        "stage": stage,
        "in_each_micro_batch": in_each,
        "share": sum(map(_length, own)),
        "gradient_width": by.communication_data_type.itemsize,
        "weight_width": weight_width,
    }


def _length(tensor: Any) -> int:
    """The number of elements when gathered, or with padding."""
    return int(getattr(tensor, "ds_numel", tensor.numel()))


def parted(wrapper: Any, watched: Watched) -> Parted | None:
    """The wrapper's optimizer, presented as one of parts of the watched model; None if it steps none of these."""
    try:
        parts = {id(parameter): part for parameter, part in stepped(wrapper)}
    except (AttributeError, ValueError):
        # Unknown version: the weights that forwards use are compared instead.
        return None
    model = next((found for key in parts if (found := watched.model_of(key))), ())
    if not model:
        return None
    optimizer = Parted(wrapper.optimizer, [parts.get(id(one)) or _frozen(one) for one in model if one is not None])
    watched.stepped_in_parts(model, optimizer.tensors)
    return optimizer


def loss_scale(wrapper: Any) -> float | None:
    """The wrapper's loss scale; None if it does not scale losses."""
    return float(wrapper.loss_scale) if getattr(wrapper, "dtype", None) == torch.float16 else None


def has_skipped(wrapper: Any) -> bool:
    """Whether the wrapper skipped its last step because of an overflow."""
    return bool(getattr(wrapper, "overflow", False))


def stepped(wrapper: Any) -> Iterator[tuple[torch.Tensor, Part]]:
    """The parameters of the model that the wrapper's optimizer steps, each with this rank's part of its master.

    Raises AttributeError, LookupError or ValueError for an unknown version of DeepSpeed.
    """
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


def cuts(wrapper: Any, parameter: Any, part: Part) -> list[tuple[int, int]]:
    """The start and end of each rank's part within a parameter. Raises the same errors as `stepped`."""
    if hasattr(parameter, "ds_tensor"):
        ranks, most = torch.distributed.get_world_size(parameter.ds_process_group), parameter.ds_tensor.ds_numel
        borders = [(most * rank, most * (rank + 1)) for rank in range(ranks)]
    else:
        named = ("parallel_partitioned_bit16_groups", "bf16_partitioned_groups")
        groups = next(getattr(wrapper, name) for name in named if hasattr(wrapper, name))
        shares = groups[part.group]
        if len({one.untyped_storage().data_ptr() for one in [parameter, *shares]}) > 1:
            raise ValueError("a parameter is outside the flat tensor of its group")
        begins = [one.storage_offset() - parameter.storage_offset() for one in shares]
        borders = [(begin, begin + one.numel()) for begin, one in zip(begins, shares, strict=True)]
    return [(min(max(0, begin), part.size), min(max(0, end), part.size)) for begin, end in borders]


def _frozen(parameter: torch.Tensor) -> Part:
    if hasattr(parameter, "ds_tensor"):
        return _of_stage_3(parameter, parameter.ds_tensor, 0, None)
    return Part(parameter, 0, parameter.numel(), 0, parameter.numel(), None)


def _of_stage_3(parameter: Any, flat: torch.Tensor, start: int, group: int | None) -> Part:
    """This rank's part of a parameter that is split into equal parts; the last ones may be shorter or empty."""
    most, size = parameter.ds_tensor.ds_numel, parameter.ds_numel
    at = min(most * torch.distributed.get_rank(parameter.ds_process_group), size)
    return Part(flat, start, min(most, size - at), at, size, group)
