"""Trainer conformance: does a trainer average gradients correctly in every path that it offers?

The names below are all that an adapter needs. They are imported on first use, so that `import conformance`
stays free of torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from conformance.runner.entering import Entry, enter
    from conformance.trainers.data import Batch
    from conformance.trainers.declaration import trainer
    from conformance.trainers.job import Job
    from conformance.trainers.task import Task

__all__ = ["Batch", "Entry", "Job", "Task", "enter", "trainer"]

_HOMES = {
    "Batch": "conformance.trainers.data",
    "Entry": "conformance.runner.entering",
    "Job": "conformance.trainers.job",
    "Task": "conformance.trainers.task",
    "enter": "conformance.runner.entering",
    "trainer": "conformance.trainers.declaration",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'conformance' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
