"""Whether a backward pass is of a loss that went backward before, or of one that is made like the last one."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from conformance.trace.state.graphs import Graphs
from conformance.watch.recording.losses import is_linear

_KEY = "conformance.place"
_NUMBERS = ("dim", "dim0", "dim1", "end", "index", "start", "step")
"""What nodes have saved of which part they take. Nothing else is looked at: what is no number may be packed away."""
_BY_TENSORS = ("GatherBackward0", "IndexBackward0", "IndexSelectBackward0", "TakeBackward0")
"""Those that save as tensors which part they take."""
_MOST_NODES = 64
_MOST_PASSED = 64


class Again:
    """What it says of a backward pass, each of which it has to be asked for once, before it begins."""

    def __init__(self) -> None:
        self._graphs = Graphs()
        self._passed: deque[int] = deque(maxlen=_MOST_PASSED)
        self._names: Sequence[str | None] | None = None
        self._walks = 0

    def contains(self, root: Any) -> bool:
        """Whether the loss is an earlier one, or a sum in which there is one. Any other function of losses, such as how
        far they are apart, is a loss of its own."""
        number = self._graphs.number(root)
        found = number in self._passed or bool(self._graphs.contained(root, is_linear))
        self._passed.append(number)
        return found

    def is_alike(self, root: Any, *, is_kept: bool) -> bool:
        """Whether each node near the root is one of the backward pass before, in the same place, or is like the one
        there. is_kept: whether the graph stays, so that another backward pass may go through it."""
        before, self._names = self._names, None
        if root is None or not (is_kept or before):
            return False
        nodes = _nodes(root)
        names = [_name(node) for node in nodes]
        places = [node.metadata.get(_KEY, (0, 0)) for node in nodes]
        # Those of the pass before are known by their places, all others by their names.
        here = [place if walk == self._walks else name for (walk, place), name in zip(places, names, strict=True)]
        alike = before is not None and len(before) == len(here) and None not in here
        for place, (one, other) in enumerate(zip(here, before or (), strict=False)):
            alike = alike and one in (place, other)
        if is_kept:
            self._walks += 1
            self._names = names
            for place, node in enumerate(nodes):
                node.metadata[_KEY] = self._walks, place
        return alike


def _name(node: Any) -> str | None:
    """What has to be the same of two nodes that are alike; None where it is not known."""
    name = str(node.name())
    if name in _BY_TENSORS:
        return None
    return f"{name} {[getattr(node, f'_saved_{number}', None) for number in _NUMBERS]}"


def _nodes(root: Any) -> list[Any]:
    """Those near the root, each once, in the order of their distance."""
    nodes, known = [root], {root}
    for node in nodes:
        for following, _ in node.next_functions:
            if following is not None and following not in known and len(nodes) < _MOST_NODES:
                nodes.append(following)
                known.add(following)
    return nodes
