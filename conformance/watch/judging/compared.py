"""How much of what each rank reads the others read, too."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from itertools import combinations

from conformance.watch.judging.rows import Rows

FEWEST = 3
"""So many different batches say something."""

_MOSTLY, _AT_LAST = 0.9, 0.3
_FEWEST_LAST = 16
_MOST_BEHIND = 1000


class Alike:
    """Of events in turn, whether they are alike: nearly all of them, or all of a large part at the end."""

    def __init__(self) -> None:
        self.seen = self.alike = self.last = 0

    def add(self, *, is_alike: bool) -> None:
        self.seen += 1
        self.alike += is_alike
        self.last = self.last + 1 if is_alike else 0

    @property
    def are_most(self) -> bool:
        return self.alike >= _MOSTLY * self.seen

    @property
    def are_last(self) -> bool:
        return self.last >= max(_FEWEST_LAST, _AT_LAST * self.seen)


class Compared:
    """Batches of the processes that train together, in the order in which each rank reads them.

    fed: of each rank, batches that the others have not read yet. rows: those read until one came again, but for batches
    that all ranks read at the same time. repeated: the ranks on which one came. different: batches that all ranks read
    at the same time, and those of them since one of their own.
    """

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._fed: defaultdict[int, deque[Sequence[int]]] = defaultdict(lambda: deque(maxlen=_MOST_BEHIND))
        self._rows: defaultdict[int, Rows] = defaultdict(Rows)
        self._repeated: set[int] = set()
        self._different: set[Sequence[int]] = set()
        self._different_last: set[Sequence[int]] = set()
        self.alike = Alike()

    def enter(self, rank: int, rows: Sequence[int]) -> None:
        """rows: of a batch; () if they are not known."""
        self._fed[rank].append(rows)
        if len(self._fed) < self._ranks or not all(self._fed.values()):
            return
        fed = {of: batches.popleft() for of, batches in self._fed.items()}
        is_alike = len({*fed.values()}) == 1 and bool(rows)
        self.alike.add(is_alike=is_alike)
        if is_alike:
            for different in (self._different, self._different_last):
                if len(different) < FEWEST:
                    different.add(rows)
            return
        self._different_last.clear()
        for of, read in fed.items():
            # What all read together may be no data of the training, as that of a learning-rate finder.
            if of not in self._repeated and not self._rows[of].add(read):
                self._repeated.add(of)

    @property
    def are_the_same(self) -> bool:
        """Whether nearly all batches were the same ones on all ranks, or all at the end."""
        return self.alike.alike >= FEWEST and (self.alike.are_most or self.alike.are_last)

    @property
    def are_few(self) -> bool:
        """Whether these are the same few again and again."""
        return len(self._different if self.alike.are_most else self._different_last) < FEWEST

    def shared(self) -> tuple[float, tuple[int, ...]]:
        """The largest share of its rows that a rank has in common with another one, and these two."""
        pairs = combinations(sorted(self._rows), 2)
        return max(((self._rows[one].shared(self._rows[other]), (one, other)) for one, other in pairs), default=(0, ()))

    def said(self) -> str:
        """Of batches that are the same."""
        alike = self.alike
        if alike.are_most:
            return f"in {alike.alike} of {alike.seen} forwards"
        return f"in the last {alike.last} of {alike.seen} forwards"
