"""Cuts the ranks' events into windows and joins these over the ranks, while the events come in."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any, Generic, TypeVar

E = TypeVar("E")
W = TypeVar("W")
K = TypeVar("K", bound=Hashable)


class Assembler(Generic[E, W, K]):
    """Joins the n-th window of each rank with a key, once every rank has that window or has ended.

    A window waits only until the slowest rank has its own.

    ranks: number of ranks to expect. key: gives a window's key, such as its optimizer. lacks: whether a rank will never
    have the counterpart of a window. over: ranks that have ended.
    cuts: for each started rank, the object that cuts its events into windows, where the plan's number changes or,
    without a plan, at each step or skip: `feed(event)` returns the windows that an event ends, `end()` the rest.
    """

    def __init__(
        self, ranks: int, key: Callable[[W], K], lacks: Callable[[int, W], bool] = lambda rank, window: False
    ) -> None:
        self.ranks = ranks
        self.cuts: dict[int, Any] = {}
        self.over: set[int] = set()
        self._key, self._lacks = key, lacks
        self._waiting: dict[K, tuple[deque[W], ...]] = defaultdict(lambda: tuple(deque() for _ in range(ranks)))
        self._changed: dict[K, None] = {}

    def feed(self, rank: int, events: Iterable[E]) -> Iterator[W]:
        """The windows of this rank that `events` end."""
        feed = self.cuts[rank].feed
        for event in events:
            for window in feed(event):
                yield self._kept(rank, window)

    def end(self, rank: int) -> Iterator[W]:
        """The windows that the end of this rank ends."""
        for window in self.cuts[rank].end() if rank in self.cuts else ():
            yield self._kept(rank, window)
        self.over.add(rank)
        self.look_again()

    def look_again(self) -> None:
        """Tries to join all waiting windows again: `lacks` has changed."""
        self._changed.update(dict.fromkeys(self._waiting))

    def _kept(self, rank: int, window: W) -> W:
        key = self._key(window)
        self._waiting[key][rank].append(window)
        self._changed[key] = None
        return window

    def ahead(self, rank: int) -> int:
        """The largest number of windows of one key that wait for other ranks."""
        return max((len(waiting[rank]) for waiting in self._waiting.values()), default=0)

    def joined(self) -> Iterator[tuple[K, tuple[W | None, ...]]]:
        """Removes and yields complete joins: the key and the windows in rank order, None for a rank that has ended."""
        # A rank that never starts is in `over` in the end, too.
        if not self._changed or len(self.cuts) < self.ranks > len(self.over):
            return
        keys, self._changed = [*self._changed], {}
        for key in keys:
            waiting = self._waiting[key]
            while any(waiting) and self._is_joined(waiting):
                yield key, tuple(own.popleft() if own else None for own in waiting)

    def _is_joined(self, waiting: tuple[deque[W], ...]) -> bool:
        first = next(own[0] for own in waiting if own)
        return all(own or rank in self.over or self._lacks(rank, first) for rank, own in enumerate(waiting))
