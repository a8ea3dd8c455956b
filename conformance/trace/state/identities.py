"""Recognises objects and tensors without keeping them alive."""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Callable
from itertools import count
from typing import Any

import torch


class Numbers:
    """Numbers the objects of each kind from 0, without keeping them alive. Forgets objects that no longer exist."""

    def __init__(self) -> None:
        self._of: defaultdict[str, dict[int, tuple[weakref.ref[object], int]]] = defaultdict(dict)
        self._next: defaultdict[str, count[int]] = defaultdict(count)

    def known(self, kind: str, thing: object) -> int | None:
        """The number of `thing`, if it has one."""
        found = self._of[kind].get(id(thing))
        return None if found is None else found[1]

    def of(self, kind: str, thing: object) -> int:
        """The number of `thing`, new at first sight."""
        number = self.known(kind, thing)
        if number is None:
            number = next(self._next[kind])
            numbers, key = self._of[kind], id(thing)
            # Another object may get this identity later.
            numbers[key] = weakref.ref(thing, lambda _: numbers.pop(key)), number
        return number

    def alive(self, kind: str) -> list[Any]:
        """The objects of a kind that still exist, in order of their numbers."""
        things = [reference() for reference, _ in list(self._of[kind].values())]
        return [thing for thing in things if thing is not None]


# Torch's stubs lack this name.
_reference: Callable[[torch.Tensor], Any] = vars(torch._C)["_WeakTensorRef"]


class Stamp:
    """The identity and version of a tensor; two stamps are equal if both agree.

    A new tensor may reuse the identity of a freed one, such as a gradient that is set to None and computed again. So
    stamps of freed tensors equal nothing. Torch's weak reference lasts as long as the C++ tensor.
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
