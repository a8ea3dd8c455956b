"""Names of parameters by the modules that hold them, whether or not these went forward by themselves."""

from __future__ import annotations

import gc
from collections.abc import Iterable

import torch

_DEEPEST = 64


def names(parameters: Iterable[torch.Tensor]) -> dict[int, str]:
    """By the identity of a parameter: the class of the outermost module that holds it, and its name in that.

    Looks at all objects of the process, which takes a while.
    """
    wanted = {id(one) for one in parameters}
    modules = [one for one in gc.get_objects() if issubclass(type(one), torch.nn.Module)]
    outer: dict[int, tuple[torch.nn.Module, str]] = {}
    for module in modules:
        for name, child in vars(module).get("_modules", {}).items():
            outer[id(child)] = min((module, name), outer.get(id(child), (module, name)), key=_order)
    found: dict[int, str] = {}
    for module in modules:
        for name, one in vars(module).get("_parameters", {}).items():
            if id(one) in wanted:
                full = _full(module, name, outer)
                found[id(one)] = min(full, found.get(id(one), full))
    return found


def _order(place: tuple[torch.nn.Module, str]) -> tuple[str, str]:
    """What is in several modules is named by the same one on all ranks."""
    return type(place[0]).__name__, place[1]


def _full(module: torch.nn.Module, name: str, outer: dict[int, tuple[torch.nn.Module, str]]) -> str:
    for _ in range(_DEEPEST):
        if id(module) not in outer:
            break
        module, place = outer[id(module)]
        name = f"{place}.{name}"
    return f"{type(module).__name__}.{name}"
