"""Shards that a script gathers by hand in a forward pass: what is computed for the whole shows where the graph goes on
from it to the shard, before that is reduced."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from conformance.trace.seams.guarding import harmless
from conformance.watch.recording import surroundings
from conformance.watch.recording.parameters import Known
from conformance.watch.recording.recording import Recording

_MOST_NODES = 200_000
_LOCAL, _GATHERED = "_ToTorchTensorBackward", "RedistributeBackward"


class Gathered:
    """see: takes a parameter's gradient."""

    def __init__(self, recording: Recording, see: Callable[[Known, Any], None]) -> None:
        self._recording, self._see = recording, see

    @contextmanager
    def followed(self, root: Any) -> Iterator[None]:
        """Within this is a backward pass from this node. It is looked through only where optimizers hold shards that
        are not FSDP2's, of all ranks."""
        handles = self._hooked(root)
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _hooked(self, root: Any) -> list[Any]:
        shards = {
            id(one): known
            for known, one in self._recording.parameters.all()
            if known.pieces and _is_by_hand(known, one)
        }
        found = [(node, shards.get(id(shard))) for node, shard in _wholes(root)] if shards else []
        return [
            node.register_prehook(harmless(partial(self._take, known))) for node, known in found if known is not None
        ]

    def _take(self, known: Known, gradients: Any) -> None:
        [gradient] = gradients
        self._see(known, gradient)


def _is_by_hand(known: Known, parameter: Any) -> bool:
    is_of_fsdp = known.is_flat or hasattr(parameter, "_conformance_whole")
    return not is_of_fsdp and parameter.device_mesh.ndim == 1 and len(known.pieces) == surroundings.world()


def _wholes(root: Any) -> Iterator[tuple[Any, torch.Tensor]]:
    """The nodes behind which a tensor is the whole of a shard, each with the shard."""
    waiting, seen = [root], {root}
    while waiting and len(seen) < _MOST_NODES:
        node = waiting.pop()
        following = [one for one, _ in node.next_functions if one is not None] if node is not None else []
        if node is not None and node.name() == _LOCAL and following and following[0].name() == _GATHERED:
            leaf = following[0].next_functions[0][0]
            shard = getattr(leaf, "variable", None)
            if shard is not None:
                yield node, shard
        for one in following:
            if one not in seen:
                seen.add(one)
                waiting.append(one)
