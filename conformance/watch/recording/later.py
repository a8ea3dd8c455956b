"""What lies on a GPU is read when it is written down. To read it at once would wait until the GPU has done all that it
was asked for, and keep the script from asking for more meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import torch

from conformance.watch import records
from conformance.watch.lines import SKETCHES


class Later:
    """A copy of a tensor, and how it is read."""

    __slots__ = ("_read", "_tensor")

    def __init__(self, tensor: torch.Tensor, read: Callable[[torch.Tensor], Any]) -> None:
        self._tensor, self._read = tensor, read

    def now(self) -> Any:
        return self._read(self._tensor)


def later(tensor: torch.Tensor, read: Callable[[torch.Tensor], Any]) -> Any:
    """What `read` makes of a tensor: at once if it is on the CPU, else once `settle` is called."""
    return read(tensor) if tensor.device.type == "cpu" else Later(tensor.detach().clone(), read)


def settle(record: records.Record) -> None:
    """Read all that a record has on a device."""
    for field in fields(record):
        value = getattr(record, field.name)
        if isinstance(value, Later):
            setattr(record, field.name, value.now())
    for name in SKETCHES[type(record)]:
        setattr(record, name, getattr(record, name).numpy(force=True))
