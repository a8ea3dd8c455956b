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
    """Copies of tensors, and how they are read."""

    __slots__ = ("_read", "_tensors")

    def __init__(self, read: Callable[..., Any], *tensors: torch.Tensor) -> None:
        self._read, self._tensors = read, tensors

    def now(self) -> Any:
        return self._read(*self._tensors)


def later(read: Callable[..., Any], *tensors: torch.Tensor) -> Any:
    """What `read` makes of tensors: at once if they are on the CPU, else once `settle` is called."""
    if all(tensor.device.type == "cpu" for tensor in tensors):
        return read(*tensors)
    return Later(read, *(tensor.detach().clone() for tensor in tensors))


def settle(record: records.Record) -> None:
    """Read all that a record has on a device."""
    for field in fields(record):
        value = getattr(record, field.name)
        if isinstance(value, Later):
            setattr(record, field.name, value.now())
    for name in SKETCHES[type(record)]:
        setattr(record, name, getattr(record, name).numpy(force=True))
