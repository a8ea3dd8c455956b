"""Parameters that each rank has for itself, beside those that all ranks train: experts, or the heads of clients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from math import prod

from conformance.watch.judging.findings import Finding
from conformance.watch.judging.stream import Stream

_FEW = 3


def from_start(waiting: Iterable[Finding], optimizer: int, stream: Stream) -> frozenset[int]:
    """Those that differ from the start, or that nobody averages, where both are the same and whole modules.

    Experts and heads may also start alike, as copies of one layer: then they are those that come to differ, some of
    which nobody averages. Of others, of the same shapes, this may not be seen, as where an expert has no samples. A
    module that somebody forgot looks the same. A tensor that is lost on its way to be averaged has others of its module
    beside it."""
    found = [finding for finding in waiting if finding.optimizer == optimizer]
    apart = [one for one in found if one.law == "watch/same-weights"]
    own = next((one.parameters for one in apart if one.step == 0), frozenset())
    alone = [one.parameters for one in found if one.law == "watch/averaged"]
    modules = _modules(stream, stream.held[optimizer])
    sizes = {number: prod(stream.parameters[number].shape) for number in modules}
    # Of a number or two it is not always seen whether they are averaged, of one alone never.
    small = {number for number in modules if sizes[number] <= _FEW}
    if own and own.difference(small, *alone):
        return frozenset()
    if not own and alone:
        lost = frozenset().union(*alone)
        # To all-reduce what is sparse takes more than one call, so that it is forgotten. A table that is dealt out to
        # the ranks does not start alike.
        if not lost.isdisjoint(stream.sparse):
            return frozenset()
        shapes = {tuple(stream.parameters[number].shape) for number in lost}
        differ = frozenset().union(*(one.parameters for one in apart))
        lost |= {number for number in differ if tuple(stream.parameters[number].shape) in shapes}
        own = lost | {n for n in modules if sizes[n] == 1 and modules[n] in {modules[one] for one in lost}}
    if not all(alone) or not all(one <= own for one in alone):
        return frozenset()
    shared = {modules[number] for number in own} & {modules[number] for number in modules.keys() - own}
    return frozenset() if shared - {None} else own


def _modules(stream: Stream, numbers: Iterable[int]) -> dict[int, tuple[str, int] | None]:
    """Whose parameters they are, None where their names are not known. Several models may have the same names: each
    name comes once in each of them, in one order."""
    counts: Counter[str] = Counter()
    found: dict[int, tuple[str, int] | None] = {}
    for number in sorted(numbers):
        name = stream.parameters[number].name
        found[number] = None if name is None else (name.rpartition(".")[0], counts[name])
        counts.update([name] if name is not None else [])
    return found
