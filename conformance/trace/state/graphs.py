"""The graphs that backwards begin in."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

_KEY = "conformance.root"
_MOST_NODES = 64


class Graphs:
    """Numbers graphs by their roots, the nodes where backwards begin, and finds those that are in another one."""

    def __init__(self) -> None:
        self._count = 0
        self._alive = weakref.WeakSet[_Root]()

    def number(self, root: Any) -> int:
        """The number of the graph with this root, a new one at first sight. A leaf, which is None, is always new."""
        # Python's object for a node comes and goes; its metadata stay with the node.
        known = _Root(self._count) if root is None else root.metadata.setdefault(_KEY, _Root(self._count))
        self._alive.add(known)
        self._count = max(self._count, known.number + 1)
        return known.number

    def contained(self, root: Any, through: Callable[[Any], bool] = lambda _: True) -> list[int]:
        """The earlier graphs that this one goes through again, near its root. through: the nodes to look behind."""
        found: set[int] = set()
        # Walking takes long, and mostly there is nothing to find: a graph lives no longer than its loss.
        queue = deque([root] if root is not None and len(self._alive) > 1 else [])
        for _ in range(_MOST_NODES):
            if not queue:
                break
            here = queue.popleft()
            following = [node for node, _ in here.next_functions if node is not None] if through(here) else []
            found.update(node.metadata[_KEY].number for node in following if _KEY in node.metadata)
            queue.extend(following)
        return sorted(found)


class _Root:
    __slots__ = ("__weakref__", "number")

    def __init__(self, number: int) -> None:
        self.number = number
