"""Determines which steps of the ranks belong together, and judges ranks that step at different times.

All ranks do the same backward passes, so the number of passes is the time of a step. The k-th steps of two ranks may
not belong together: ranks may take turns, or one steps for all and sends its weights. Then all ranks still have equal
weights at equal times; ranks that lost each other do not.
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
"""After so many times with different weights, ranks do not seem to exchange weights."""


class Pairing:
    """Compares the times of steps, and the weights at equal times, of processes that train together."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._since: dict[int, dict[int, int]] = defaultdict(dict)
        self._weights: dict[int, dict[int, dict[int, bytes]]] = defaultdict(dict)
        self._apart: dict[int, set[int]] = {}
        self._last: dict[int, dict[int, bytes]] = {}

    def weigh(self, rank: int, clock: int, weighed: records.Weighed) -> None:
        """Takes a rank's weights before a backward pass. clock: the number of passes before."""
        rows = [row.tobytes() for row in np.reshape(weighed.values, (-1, WIDTH))]
        at = self._last if weighed.last else self._weights[clock]
        at[rank] = dict(zip(weighed.parameters, rows, strict=True))
        if not weighed.last and len(at) == self._ranks:
            self._apart[clock] = _apart(self._weights.pop(clock))
        while len(self._weights) > _MOST_TIMES:
            del self._weights[min(self._weights)]

    def is_one_step(self, windows: Iterable[Window], *, is_conserved: bool) -> bool:
        """Whether these windows end with one step of all ranks. is_conserved: the ranks are known to have used the sum
        of their gradients."""
        windows = list(windows)
        since = self._since[windows[0].optimizer]
        passed = {window.clock - since.get(window.rank, 0) for window in windows}
        if len(passed) > 1 and not is_conserved:
            return False
        since.update((window.rank, window.clock) for window in windows)
        return True

    def are_apart(self, window: Window) -> bool:
        """Whether the ranks' weights differ at all times after a step that not all ranks took."""
        # Until the next backward pass the clock is that of the step.
        held = held_by(window)
        after = [bool(apart & held) for clock, apart in self._apart.items() if clock >= window.clock]
        return len(after) >= _ENOUGH and all(after)

    def end_apart(self, numbers: Set[int]) -> bool:
        """Whether some of these parameters differ between the ranks at the end. Ranks that ran out of data may do fewer
        backward passes, but the end is the same time for all."""
        return len(self._last) == self._ranks and bool(_apart(self._last) & numbers)

    def end_equal(self, numbers: set[int]) -> bool:
        """Whether these parameters are known to be equal on all ranks at the end."""
        return len(self._last) == self._ranks and not _apart(self._last) & numbers


def are_numbered_alike(windows: Iterable[Window], streams: Iterable[Stream]) -> bool:
    """Whether all ranks have the parameters of these steps, by the common numbers."""
    held = {number for window in windows if window.step is not None for number in window.step.parameters}
    return all(held <= stream.parameters.keys() for stream in streams)


def held_by(window: Window) -> set[int]:
    """The parameters that it steps as a whole."""
    held = set() if window.step is None else {*window.step.parameters}
    return held - {number for number, shards in window.shards.items() if shards > 1}


def is_of_shards(window: Window) -> bool:
    """Whether each rank steps its own shard of the weights, so no rank can step for another."""
    held = [] if window.step is None else window.step.parameters
    return bool(held) and all(window.shards.get(number, 1) > 1 for number in held)


def _apart(by_rank: dict[int, dict[int, bytes]]) -> set[int]:
    """The parameters that are not equal on all ranks."""
    first, *others = by_rank.values()
    return {number for number in first if any(other.get(number, first[number]) != first[number] for other in others)}


def times(windows: Iterable[Window]) -> Said:
    """The number of backward passes before each rank's step."""
    return said("step-at-other-times", passes=[one.clock for one in windows])


class Lacking:
    """Collects steps that not all ranks take. first: the first finding and its window. lines: of these steps.

    common: by optimizer, the lines of steps that all ranks take. of_some: by optimizer, the ranks that step at a time,
    as a number of backward passes, if not all do."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._count = 0
        self._lines: set[str] = set()
        self.common: dict[int, set[str]] = defaultdict(set)
        self.first: tuple[Finding, Window] | None = None
        self._of_some: dict[int, dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))

    def see(self, here: Sequence[Window], ranks: int) -> None:
        """Takes a step of some or all of the ranks."""
        for window in here:
            of_some = self._of_some[window.optimizer]
            if window.step is not None:
                of_some[window.clock].add(window.rank)
                if len(of_some[window.clock]) == ranks:
                    del of_some[window.clock]

    def take(self, here: Sequence[Window], says: Said, ranks: tuple[int, ...]) -> None:
        """Takes a step that not all ranks take at this time."""
        self._lines |= {str(window.site) for window in here}
        self._count += sum(window.step is not None for window in here)
        if self.first is None:
            first = here[0]
            finding = Finding("watch/same-steps", says, first.index, ranks, first.site, optimizer=first.optimizer)
            self.first = finding, first

    def decide(
        self, streams: Mapping[int, Stream], times: Pairing, common: Set[int], *, is_whole: bool, is_blind: bool
    ) -> None:
        """Judges them at the end. common: optimizers of models that the ranks train together. is_whole: all processes
        ended by themselves, without an error. is_blind: some ranks were not seen completely."""
        if self.first is None:
            return
        finding, window = self.first
        # Another loop, such as a last phase on one rank, has other lines.
        is_of_loop = is_whole and self._lines <= self.common[window.optimizer]
        are_left = times.end_apart(held_by(window)) and (is_of_loop or times.are_apart(window))
        are_lost = (window.optimizer in common and are_left) or (is_whole and is_of_shards(window))
        if are_lost and not is_blind and are_numbered_alike([window], streams.values()):
            steps = len(self._of_some[window.optimizer])
            finding.effect = said("steps-of-some", steps=steps)
            self._findings.judged(finding.shows, count=self._count)
            self._findings.add(finding, count=steps)
        elif is_whole or is_blind:
            self._findings.judged(FACTS["ranks.turns"], count=self._count)
            self._findings.leave_open(said("ranks.turns"), self._count)
