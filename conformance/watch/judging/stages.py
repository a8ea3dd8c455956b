"""Judges steps of ranks that each have an optimizer for their part of one model, such as pipeline stages.

The n-th steps of the ranks belong together. A tensor on several ranks, such as a tied embedding, is identified by its
initial weights: it must stay equal, and its gradient is the sum over these ranks.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from conformance.watch.judging import conservation
from conformance.watch.judging.equations import Together
from conformance.watch.judging.findings import Finding, Findings, said
from conformance.watch.judging.properties import FACTS
from conformance.watch.judging.targets import are_of_one_loss
from conformance.watch.judging.windows import Window, are_equal

Alone: TypeAlias = tuple[Together, Findings]

_MANY_ELEMENTS = 64
"""Tensors with fewer elements, such as ones and zeros, may be equal by chance."""
_APART = 1_000_000
"""Between the numbers of parameters of two ranks that are not the same."""


class Stages:
    """Joins and judges the steps of all stages. A step that is right by itself is one, unless stages of one loss share
    a tensor."""

    def __init__(self, ranks: int, findings: Findings) -> None:
        self._ranks, self._findings = ranks, findings
        self._steps: dict[int, deque[tuple[Window, Alone | None]]] = defaultdict(deque)
        self._shared: dict[int, dict[int, int]] | None = None
        self._waiting: list[Finding] = []
        self._are_apart = False

    def take(self, window: Window, alone: Alone | None = None) -> Iterator[Together]:
        """Takes a step of one rank. alone: it and its facts if it is right by itself. Yields judged steps, of all ranks
        or of one."""
        self._steps[window.rank].append((window, alone))
        while len(self._steps) == self._ranks and all(self._steps.values()):
            here = [self._steps[rank].popleft() for rank in sorted(self._steps)]
            windows = [window for window, _ in here]
            if self._shared is None:
                self._shared = _shared(windows)
            single = [alone for _, alone in here if alone is not None]
            # Ranks with a loss each may train separate models, which start from the same weights.
            if len(single) < self._ranks or (_are_shared(self._shared) and are_of_one_loss(windows)):
                yield self._judge(windows, self._shared)
            else:
                yield from map(self._accept, single)

    def _accept(self, alone: Alone) -> Together:
        together, found = alone
        self._findings.take(found)
        return together

    def _judge(self, here: Sequence[Window], shared: Mapping[int, Mapping[int, int]]) -> Together:
        here = [_renumbered(window, shared[window.rank]) for window in here]
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

    def finish(self) -> Iterator[Together]:
        """Yields the steps that are right by themselves and have none of other ranks next to them."""
        for finding in self._waiting:
            if self._are_apart:
                self._findings.add(finding)
            else:
                self._findings.leave_open(said("ranks.own"), step=finding.step, site=finding.site)
        for steps in self._steps.values():
            yield from (self._accept(alone) for _, alone in steps if alone is not None)
            windows = [window for window, alone in steps if alone is None]
            if windows:
                says = said("ranks.some", type=windows[0].key.type)
                self._findings.judged(FACTS[says.code], count=len(windows))
                self._findings.leave_open(says, len(windows), windows[0].index, windows[0].site)


def _shared(here: Sequence[Window]) -> dict[int, dict[int, int]]:
    """By rank, common numbers of parameters with equal initial weights: the number on the first such rank."""
    known: dict[tuple[float, ...], int] = {}
    numbers: dict[int, dict[int, int]] = {window.rank: {} for window in here}
    for place, window in enumerate(here):
        for number, weights in window.weights.items():
            own = place * _APART + number
            is_large = window.sizes.get(number, 0) >= _MANY_ELEMENTS
            numbers[window.rank][number] = known.setdefault(weights, own) if is_large else own
    return numbers


def _are_shared(numbers: Mapping[int, Mapping[int, int]]) -> bool:
    """Whether two ranks have the same tensor."""
    each = [{*of_rank.values()} for of_rank in numbers.values()]
    return sum(map(len, each)) > len(set[int]().union(*each))


_OF_PARAMETERS = ("new", "old", "used", "weights", "shards", "shard", "sizes", "names", "samples", "again")
"""Fields of a window that are keyed by parameter number."""


def _renumbered(window: Window, numbers: Mapping[int, int]) -> Window:
    clips = [
        (at, replace(clip, parameters=[numbers.get(number, number) for number in clip.parameters]))
        for at, clip in window.clips
    ]
    values: dict[str, Any] = {
        name: {numbers.get(number, number): value for number, value in getattr(window, name).items()}
        for name in _OF_PARAMETERS
    }
    return replace(window, clips=clips, **values)
