"""The windows of several ranks, joined while they come in."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Generic, TypeVar

W = TypeVar("W")


class Joining(Generic[W]):
    """The n-th windows of all ranks, once each rank has its own or is over.

    Those of a rank wait for the others', so that no more are kept than it is ahead.

    over: the ranks of which nothing more comes; they may become more.
    """

    def __init__(self, ranks: int, over: Collection[int] = ()) -> None:
        self._waiting: Sequence[deque[W]] = [deque() for _ in range(ranks)]
        self._over = over

    def put(self, rank: int, windows: Iterable[W]) -> None:
        self._waiting[rank].extend(windows)

    def ahead(self, rank: int) -> int:
        """How many windows of a rank wait for those of others."""
        return len(self._waiting[rank])

    def joined(self) -> Iterator[tuple[W | None, ...]]:
        """Takes out those that wait for none, in rank order; None for a rank that is over."""
        while any(self._waiting) and all(own or rank in self._over for rank, own in enumerate(self._waiting)):
            yield tuple(own.popleft() if own else None for own in self._waiting)
