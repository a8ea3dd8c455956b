"""A tensor as it is now, to be recognised later, and not kept for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

# Torch's stubs do not have it.
_reference: Callable[[torch.Tensor], Any] = vars(torch._C)["_WeakTensorRef"]


class Stamp:
    """Equal to another one of the same tensor, in the same version.

    Another tensor may have the identity of one that is gone, as a gradient that is set to None and computed again. A
    weak reference of torch's lasts as long as the tensor, whoever holds it.
    """

    __slots__ = ("_identity", "_reference", "_version")

    def __init__(self, tensor: torch.Tensor) -> None:
        self._identity, self._version = id(tensor), tensor._version
        self._reference = _reference(tensor)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Stamp):
            return NotImplemented
        are_alike = (self._identity, self._version) == (other._identity, other._version)
        return are_alike and not self._reference.expired() and not other._reference.expired()
