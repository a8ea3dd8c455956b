"""Trainer conformance: checks that a trainer averages gradients correctly on every path it supports.

The names below are all that an adapter needs. They are imported on first use: `import conformance` does not import
torch.
`run` and `watching` do in Python what the commands do, and `conformance.callbacks` watches trainings of frameworks.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from conformance.adapter.batches import Batch
    from conformance.adapter.declaration import Job, Unsupported, trainer
    from conformance.adapter.task import Task
    from conformance.runner.rank.entering import Entry, enter

__all__ = ["Batch", "Entry", "Job", "Task", "Unsupported", "enter", "run", "trainer", "watching"]

_HOMES = {
    "Batch": "conformance.adapter.batches",
    "Entry": "conformance.runner.rank.entering",
    "Job": "conformance.adapter.declaration",
    "Task": "conformance.adapter.task",
    "Unsupported": "conformance.adapter.declaration",
    "enter": "conformance.runner.rank.entering",
    "run": "conformance.running",
    "trainer": "conformance.adapter.declaration",
    "watching": "conformance.watch.inside",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'conformance' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
