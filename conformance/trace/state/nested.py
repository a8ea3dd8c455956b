"""The activities in progress, one inside the other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Generic, TypeVar

T = TypeVar("T")


class Nested(Generic[T]):
    """The activities that have begun and not ended. Iterates from the innermost."""

    def __init__(self) -> None:
        self._entered: list[_Entered[T]] = []

    def inside(self, what: T) -> AbstractContextManager[None]:
        """Within this, `what` is being done."""
        return _Entered(what, self._entered)

    def __iter__(self) -> Iterator[T]:
        return (entered.what for entered in reversed(self._entered))

    def __contains__(self, what: object) -> bool:
        # Asked often: a list takes half the time of the generator.
        return what in [entered.what for entered in self._entered]


class _Entered(AbstractContextManager[None], Generic[T]):
    """Contexts of several threads, or of steps that were interrupted, need not end in order: each removes itself."""

    def __init__(self, what: T, all_: list[_Entered[T]]) -> None:
        self.what = what
        self._all = all_

    def __enter__(self) -> None:
        self._all.append(self)

    def __exit__(self, *error: object) -> None:
        self._all.remove(self)
