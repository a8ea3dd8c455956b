"""Callbacks that watch a training: `TransformersCallback` and `LightningCallback`.

Each takes the arguments of `conformance.watching`, and has the `Watch` of its latest training as `watch`.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["LightningCallback", "TransformersCallback"]

#: By name: the module, and the distribution that it needs.
_HOMES = {
    "LightningCallback": ("conformance.callbacks.of_lightning", "lightning"),
    "TransformersCallback": ("conformance.callbacks.of_transformers", "transformers"),
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'conformance.callbacks' has no attribute {name!r}")
    module, needed = _HOMES[name]
    try:
        return getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != needed:
            raise
        raise ImportError(f"{name} needs {needed}: pip install {needed}") from error
