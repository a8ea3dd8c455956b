"""Judges steps of ranks that each have an optimizer for their part of one model, such as pipeline stages.

The n-th steps of the ranks belong together. A tensor on several ranks, such as a tied embedding, is identified by its
initial weights: it must stay equal, and its gradient is the sum over these ranks.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from conformance.watch.judging import conservation
from conformance.watch.judging.equations import Together
from conformance.watch.judging.findings import Finding, Findings, said
from conformance.watch.judging.properties import FACTS
from conformance.watch.judging.windows import Window, are_equal

_MANY_ELEMENTS = 64
"""Tensors with fewer elements, such as ones and zeros, may be equal by chance."""


class Stages:
    """Joins and judges the steps of all stages."""

    def __init__(self, ranks: int, findings: Findings) -> None:
        self._ranks, self._findings = ranks, findings
        self._steps: dict[int, deque[Window]] = defaultdict(deque)
        self._shared: dict[int, dict[int, int]] | None = None
        self._waiting: list[Finding] = []
        self._are_apart = False

    def take(self, window: Window) -> Iterator[Together]:
        """Takes a step of one rank. Yields judged steps of all ranks."""
        self._steps[window.rank].append(window)
        while len(self._steps) == self._ranks and all(self._steps.values()):
            here = [self._steps[rank].popleft() for rank in sorted(self._steps)]
            yield self._judge(here)

    def _judge(self, here: Sequence[Window]) -> Together:
        if self._shared is None:
            self._shared = _shared(here)
        here = [_renumbered(window, self._shared[window.rank]) for window in here]
        common = set.intersection(*({*window.weights} for window in here))
        own = {number for window in here for number in window.weights} - common
        together = Together(here, self._ranks, False, frozenset(), frozenset(own), is_split=True)
        found = Findings()
        conservation.judge(together, found)
        self._are_apart |= any(not are_equal([one.weights for one in here], number) for number in common)
        for cause in found.causes.values():
            if cause.first.waits:
                self._findings.show(cause.first.key, here)
                self._waiting.append(cause.first)
            else:
                self._findings.add(cause.first, here)
        for system in found.unsolved:
            window = system.case.window
            found.leave_open(said("changed.few"), step=window.index, site=window.site)
            found.resolve((window.optimizer, window.rank), FACTS["changed.few"])
        self._findings.take(found)
        return together

    def finish(self) -> None:
        for finding in self._waiting:
            if self._are_apart:
                self._findings.add(finding)
            else:
                self._findings.leave_open(said("ranks.own"), step=finding.step, site=finding.site)
        for windows in self._steps.values():
            if windows:
                says = said("ranks.some", type=windows[0].key.type)
                self._findings.judged(FACTS[says.code], count=len(windows))
                self._findings.leave_open(says, len(windows), windows[0].index, windows[0].site)


def _shared(here: Sequence[Window]) -> dict[int, dict[int, int]]:
    """By rank, common numbers of parameters with equal initial weights: the number on the first such rank."""
    known: dict[tuple[float, ...], int] = {}
    numbers: dict[int, dict[int, int]] = {window.rank: {} for window in here}
    for window in here:
        for number, weights in window.weights.items():
            if window.sizes.get(number, 0) >= _MANY_ELEMENTS:
                numbers[window.rank][number] = known.setdefault(weights, number)
    return numbers


_OF_PARAMETERS = ("new", "old", "used", "weights", "shards", "shard", "sizes", "names", "samples", "again")
"""Fields of a window that are keyed by parameter number."""


def _renumbered(window: Window, numbers: dict[int, int]) -> Window:
    clips = [
        (at, replace(clip, parameters=[numbers.get(number, number) for number in clip.parameters]))
        for at, clip in window.clips
    ]
    values: dict[str, Any] = {
        name: {numbers.get(number, number): value for number, value in getattr(window, name).items()}
        for name in _OF_PARAMETERS
    }
    return replace(window, clips=clips, **values)
