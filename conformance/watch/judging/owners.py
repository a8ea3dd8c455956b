"""Ranks that each step a share of the parameters, as many as the others, and leave some to nobody."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from itertools import combinations

import numpy as np

from conformance.watch import records
from conformance.watch.judging.findings import Finding, Findings
from conformance.watch.judging.stream import Stream
from conformance.watch.sizes import WIDTH

_NEAR = 1e-6


class Owners:
    """Of the processes that train together."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._first: dict[tuple[int, int], records.Sketches] = {}
        self._times: dict[int, int] = defaultdict(int)
        self._moved: set[tuple[int, int]] = set()

    def weigh(self, rank: int, weighed: records.Weighed) -> None:
        """What a rank's weights are."""
        self._times[rank] += 1
        for number, value in zip(weighed.parameters, np.reshape(weighed.values, (-1, WIDTH)), strict=True):
            first = self._first.setdefault((rank, number), value)
            if not np.allclose(first, value, 0, _NEAR * float(first[2])):
                self._moved.add((rank, number))

    def finish(self, streams: Mapping[int, Stream], ranks: int) -> None:
        """Of what all ranks compute gradients for, each steps as many as the others, and fewer than there are ranks
        are left over, a part of a module, and stay what they are.

        A script that wants parts of a model to stay chooses them by what they are. What is left over where their number
        is divided by that of the ranks is none of that: it is a bias in one case, and in another one nothing."""
        if ranks == 1 or len(streams) < ranks:
            return
        own = [_names(stream, set().union(*(stream.held[one] for one in stream.steps))) for stream in streams.values()]
        computed = [_computed(stream) for stream in streams.values()]
        stepped, left = set().union(*own), set.intersection(*computed) - set().union(*own)
        are_shares = len({*map(len, own)}) == 1 and all(own) and not any(a & b for a, b in combinations(own, 2))
        if not are_shares or not 0 < len(left) < ranks or not all(stepped <= names for names in computed):
            return
        modules = {name.rpartition(".")[0] for name in stepped}
        is_still = all(self._are_still(rank, stream, left) for rank, stream in streams.items())
        if is_still and any(name.rpartition(".")[0] in modules for name in left):
            says = f"each of {ranks} ranks steps {len(own[0])} of {len(stepped) + len(left)} parameters, and what is "
            says += f"left over belongs to none: {', '.join(sorted(left))}"
            effect = f"{len(left)} parameters of the model stay what they were"
            self._findings.add(Finding("watch/held", says, None, tuple(streams), None, effect))

    def _are_still(self, rank: int, stream: Stream, names: set[str]) -> bool:
        known = {stream.parameters[number].name: number for number in stream.parameters}
        still = set() if stream.unheld is None else {*stream.unheld.still}
        return self._times[rank] > 1 and all(
            (rank, known[name]) not in self._moved if name in known else name in still for name in names
        )


def _names(stream: Stream, numbers: set[int]) -> set[str]:
    return {name for number in numbers if (name := stream.parameters[number].name) is not None}


def _computed(stream: Stream) -> set[str]:
    """What a rank has computed gradients for, whoever holds it."""
    return _names(stream, stream.ever) | (set() if stream.unheld is None else {*stream.unheld.names})
