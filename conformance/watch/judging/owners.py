"""Finds what goes wrong where each rank steps other parameters: some are never sent, and some no rank steps."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

import numpy as np

from conformance.watch import records
from conformance.watch.judging.findings import Finding, Findings, said
from conformance.watch.judging.pairing import Pairing
from conformance.watch.judging.stream import Stream
from conformance.watch.judging.windows import Window
from conformance.watch.sizes import WIDTH

_NEAR = 1e-6


class Owners:
    """Judges the processes of one launch. first: the first known weight of each rank's parameters. moved: those that
    were seen to change since. times: how often weights of a rank were seen."""

    def __init__(self, ranks: int, findings: Findings) -> None:
        self._ranks, self._findings = ranks, findings
        self._first: dict[tuple[int, int], records.Sketches] = {}
        self._moved: set[tuple[int, int]] = set()
        self._times = [0] * ranks

    def weigh(self, rank: int, weighed: records.Weighed) -> None:
        """Takes the weights of a rank."""
        self._times[rank] += 1
        for number, value in zip(weighed.parameters, np.reshape(weighed.values, (-1, WIDTH)), strict=True):
            first = self._first.setdefault((rank, number), value)
            if not np.allclose(first, value, 0, _NEAR * float(first[2])):
                self._moved.add((rank, number))

    def judge_unsent(self, streams: Mapping[int, Stream], pairing: Pairing, first: Window) -> None:
        """Finds parameters that only some ranks step while all train with them, and that then differ between ranks.

        first: a window of the first step. Ranks that each step all parameters may average them now and then; a rank
        that does not step one has nothing new until it gets it."""
        if self._ranks == 1 or len(streams) < self._ranks:
            return
        common = set.intersection(*(stream.ever for stream in streams.values()))
        alone = {n for n in common if 0 < sum(n in stream.used_ever for stream in streams.values()) < self._ranks}
        names = {n: {stream.parameters[n].name or "" for stream in streams.values()} for n in alone}
        # Ranks number parameters as they come: one with a single name is the same on all.
        alone = {n for n in alone if len(names[n]) == 1 and "" not in names[n]}
        unsent = sorted(pairing.stay_apart(alone, first.clock))
        if unsent:
            found = [name for number in unsent for name in names[number]]
            says = said("same-weights.unsent", count=len(unsent), names=found)
            effect = said("same-weights.differ", count=len(unsent))
            self._findings.add(Finding("watch/same-weights", says, first.index, (*streams,), first.site, effect))

    def judge_left_over(self, streams: Mapping[int, Stream]) -> None:
        """Finds parameters left over by a division among the ranks: all ranks compute their gradients and step equal
        shares of the others, and they are fewer than the ranks, a part of a module that is stepped, and never change.

        A script that keeps parts of a model as they are chooses them by what they are, not by the number of ranks."""
        if self._ranks == 1 or len(streams) < self._ranks:
            return
        own = [_names(stream, set().union(*(stream.held[one] for one in stream.steps))) for stream in streams.values()]
        computed = [_computed(stream) for stream in streams.values()]
        stepped = set().union(*own)
        left = set.intersection(*computed) - stepped
        are_shares = len({*map(len, own)}) == 1 and all(own) and not any(a & b for a, b in combinations(own, 2))
        if not are_shares or not 0 < len(left) < self._ranks or not all(stepped <= names for names in computed):
            return
        modules = {name.rpartition(".")[0] for name in stepped}
        is_still = all(self._are_still(rank, stream, left) for rank, stream in streams.items())
        if is_still and any(name.rpartition(".")[0] in modules for name in left):
            says = said("held.left-over", ranks=self._ranks, each=len(own[0]), count=len(left), names=sorted(left))
            effect = said("held.stays", count=len(left))
            self._findings.add(Finding("watch/held", says, None, (*streams,), None, effect))

    def _are_still(self, rank: int, stream: Stream, names: set[str]) -> bool:
        known = {stream.parameters[number].name: number for number in stream.parameters}
        still = set() if stream.unheld is None else {*stream.unheld.still}
        return self._times[rank] > 1 and all(
            (rank, known[name]) not in self._moved if name in known else name in still for name in names
        )


def _names(stream: Stream, numbers: set[int]) -> set[str]:
    return {name for number in numbers if (name := stream.parameters[number].name) is not None}


def _computed(stream: Stream) -> set[str]:
    """The parameters that a rank has computed gradients for, whoever holds them."""
    return _names(stream, stream.ever) | (set() if stream.unheld is None else {*stream.unheld.names})
