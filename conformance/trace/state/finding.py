"""The parameters in a module, and which tensor is a copy, a part or a rounding of which."""

from __future__ import annotations

from typing import Any

import torch

from conformance.trace.shards import places
from conformance.trace.values import own_part


def master_of(used: torch.Tensor | None, *candidates: torch.Tensor | None) -> torch.Tensor | None:
    """The candidate of which `used` is a copy in another format; else `used`."""
    others = (one for one in candidates if one is not None and used is not None and one.dtype != used.dtype)
    return next((one for one in others if are_equal(used, one) or _is_shard(one, used)), used)


def or_stepped(used: torch.Tensor | None, stepped: torch.Tensor | None) -> torch.Tensor | None:
    """`used`, or what is stepped of it while it has no values."""
    return used if used is None or own_part(used).numel() else stepped


def cast_from(tensor: torch.Tensor | None) -> torch.Tensor | None:
    """The leaf that a tensor of a graph was cast from, with no other operation in between."""
    cast = None if tensor is None else tensor.grad_fn
    if cast is None or cast.name() != "ToCopyBackward0":
        return None
    return getattr(cast.next_functions[0][0], "variable", None)


def parameters_of(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """What a module and those within it have as parameters, by name, but not what parametrizations compute others from.
    In a functional call these are tensors."""
    if not module._modules:
        return {name: one for name, one in module._parameters.items() if one is not None}
    return {name: one for name, one in module.named_parameters() if "parametrizations" not in name.split(".")}


def parametrized(module: torch.nn.Module, name: str) -> torch.Tensor | None:
    """The tensor that a parametrization computes the one of this name from, if it does so from one."""
    owner, _, leaf = name.rpartition(".")
    try:
        home = module.get_submodule(owner)
        found = home.get_submodule(f"parametrizations.{leaf}")._parameters
    except AttributeError:
        return None
    return found.get("original")


def tensor_at(module: torch.nn.Module, name: str, otherwise: torch.Tensor | None = None) -> torch.Tensor | None:
    """What is called so in a module, or in one within it."""
    owner, _, leaf = name.rpartition(".")
    try:
        home = module.get_submodule(owner)
        # DeepSpeed gathers a parameter that is looked up like an attribute, which would be a collective of ours.
        known: Any = home._parameters  # Of a scripted module, no dict.
        own = dict.get(known, leaf) if isinstance(known, dict) else None
        value = getattr(home, leaf, otherwise) if own is None else own
    except AttributeError:
        return otherwise
    return value if isinstance(value, torch.Tensor) else None


def are_equal(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    if one is None or other is None:
        return False
    one, other = own_part(one), own_part(other)
    # What has no values is equal to nothing.
    return one.numel() > 0 and one.shape == other.shape and torch.equal(one, other.to(one))


def _is_shard(one: torch.Tensor, used: torch.Tensor | None) -> bool:
    """Whether `one` is what this rank holds of a tensor that was gathered into `used`, in another format."""
    at = None if used is None else places(one)
    if used is None or at is None:
        return False
    part, whole = own_part(one).to(used.dtype).flatten(), own_part(used).flatten()
    return len(at) == len(part) and max(at, default=-1) < len(whole) and torch.equal(part, whole[list(at)])


def is_part(one: torch.Tensor, whole: torch.Tensor | None) -> bool:
    """Whether `one` is what this rank holds of a copy of `whole`, which may be nothing."""
    at = None if whole is None or one.shape != whole.shape else places(one)
    if whole is None or at is None:
        return False
    part, values = own_part(one).flatten(), own_part(whole).flatten()
    return len(values) == whole.numel() and torch.equal(part, values[list(at)].to(part))
