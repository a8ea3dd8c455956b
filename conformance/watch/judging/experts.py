"""Parameters that each rank has for itself, beside those that all ranks train: experts, or the heads of clients."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from conformance.watch.judging.findings import Finding
from conformance.watch.judging.stream import Stream

_FEW = 3


def from_start(waiting: Iterable[Finding], optimizer: int, stream: Stream) -> frozenset[int]:
    """Those that differ from the start, where these are just those that are never averaged, and whole modules.

    Where one seed starts all ranks, and nobody wraps the model, this takes a line of its own. A layer that is forgotten
    starts alike, and a tensor that is lost on its way to be averaged has others of its module beside it."""
    found = [finding for finding in waiting if finding.optimizer == optimizer]
    start = next((one.parameters for one in found if (one.law, one.step) == ("watch/same-weights", 0)), frozenset())
    alone = [one.parameters for one in found if one.law == "watch/averaged"]
    if not all(alone) or not all(one <= start for one in alone):
        return frozenset()
    # Of a number or two it cannot be seen whether they are averaged.
    if any(prod(stream.parameters[number].shape) > _FEW for number in start.difference(*alone)):
        return frozenset()
    shared = _modules(stream, start) & _modules(stream, stream.held[optimizer] - start)
    return frozenset() if shared else start


def _modules(stream: Stream, numbers: Iterable[int]) -> set[str]:
    """Whose parameters they are, as far as their names are known."""
    names = (stream.parameters[number].name for number in numbers)
    return {name.rpartition(".")[0] for name in names if name is not None}
