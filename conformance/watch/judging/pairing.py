"""Which steps of the ranks are one step, and what becomes of ranks that step at other times than the others.

Ranks go through the same backward passes, so that the number of those that came before says when a step is. The k-th
steps of two ranks need not be one: ranks may take turns, or one may step for all and send its weights. Then the ranks
have equal weights at equal times all the same; those that have lost each other do not.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set

import numpy as np

from conformance.watch import records
from conformance.watch.judging.findings import Finding, Findings, Said, said
from conformance.watch.judging.properties import FACTS
from conformance.watch.judging.stream import Stream
from conformance.watch.judging.windows import Window
from conformance.watch.sizes import WIDTH

_MOST_TIMES = 64
_ENOUGH = 2
"""Times at which weights are apart, and never equal again, before they are no longer thought to be sent around."""


class Pairing:
    """Of the processes that train together."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._since: dict[int, dict[int, int]] = defaultdict(dict)
        self._weights: dict[int, dict[int, dict[int, bytes]]] = defaultdict(dict)
        self._apart: dict[int, set[int]] = {}
        self._last: dict[int, dict[int, bytes]] = {}

    def weigh(self, rank: int, clock: int, weighed: records.Weighed) -> None:
        """What a rank's weights are before a backward pass. clock: how many came before."""
        rows = [row.tobytes() for row in np.reshape(weighed.values, (-1, WIDTH))]
        at = self._last if weighed.last else self._weights[clock]
        at[rank] = dict(zip(weighed.parameters, rows, strict=True))
        if not weighed.last and len(at) == self._ranks:
            self._apart[clock] = _apart(self._weights.pop(clock))
        while len(self._weights) > _MOST_TIMES:
            del self._weights[min(self._weights)]

    def is_one_step(self, windows: Iterable[Window], *, is_conserved: bool) -> bool:
        """is_conserved: whether the ranks are known to have used the sum of what they computed in these windows."""
        windows = list(windows)
        since = self._since[windows[0].optimizer]
        passed = {window.clock - since.get(window.rank, 0) for window in windows}
        if len(passed) > 1 and not is_conserved:
            return False
        since.update((window.rank, window.clock) for window in windows)
        return True

    def are_lost(self, window: Window) -> bool:
        """Whether the ranks' weights are apart at all times after this step, which is not one of all ranks, and at the
        end. Before the next backward pass the clock is still what it was at the step."""
        held = set() if window.step is None else {*window.step.parameters}
        held -= {number for number, shards in window.shards.items() if shards > 1}
        after = [bool(apart & held) for clock, apart in self._apart.items() if clock >= window.clock]
        # Ranks that have run out of data may do fewer backward passes. At the end it is the same time for all.
        ends_apart = len(self._last) == self._ranks and bool(_apart(self._last) & held)
        return ends_apart and len(after) >= _ENOUGH and all(after)

    def end_equal(self, numbers: set[int]) -> bool:
        """Whether these parameters are equal on all ranks at the end, if that was seen."""
        return len(self._last) == self._ranks and not _apart(self._last) & numbers


def are_numbered_alike(windows: Iterable[Window], streams: Iterable[Stream]) -> bool:
    """Whether all ranks know the parameters of these steps, which came to each with the same optimizer."""
    held = {number for window in windows if window.step is not None for number in window.step.parameters}
    return all(held <= stream.parameters.keys() for stream in streams)


def is_of_shards(window: Window) -> bool:
    """Whether each rank steps a part of the weights that no other rank has, so that none can step for another."""
    held = [] if window.step is None else window.step.parameters
    return bool(held) and all(window.shards.get(number, 1) > 1 for number in held)


def _apart(by_rank: dict[int, dict[int, bytes]]) -> set[int]:
    """The parameters that are not equal on all ranks."""
    first, *others = by_rank.values()
    return {number for number in first if any(other.get(number, first[number]) != first[number] for other in others)}


def times(windows: Iterable[Window]) -> Said:
    """After how many backward passes each rank steps."""
    return said("step-at-other-times", passes=[one.clock for one in windows])


class Lacking:
    """Of the processes that train together. first: the first such step, and what it looks like."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._count = 0
        self.first: tuple[Finding, Window] | None = None

    def take(self, here: Sequence[Window], says: Said, ranks: tuple[int, ...]) -> None:
        """A step that not all ranks take at this time."""
        self._count += sum(window.step is not None for window in here)
        if self.first is None:
            first = here[0]
            finding = Finding("watch/same-steps", says, first.index, ranks, first.site, optimizer=first.optimizer)
            self.first = finding, first

    def decide(
        self, streams: Mapping[int, Stream], times: Pairing, common: Set[int], *, is_whole: bool, is_blind: bool
    ) -> None:
        """After the end. common: optimizers of what the ranks average. is_whole: whether all ended of themselves, and
        well. is_blind: whether there are ranks of which not all was seen."""
        if self.first is None:
            return
        finding, window = self.first
        are_lost = (window.optimizer in common and times.are_lost(window)) or (is_whole and is_of_shards(window))
        if are_lost and not is_blind and are_numbered_alike([window], streams.values()):
            finding.effect = said("steps-of-some", steps=self._count)
            self._findings.judged(finding.shows, count=self._count)
            self._findings.add(finding)
        elif is_whole or is_blind:
            self._findings.judged(FACTS["ranks.turns"], count=self._count)
            self._findings.leave_open(said("ranks.turns"), self._count)
