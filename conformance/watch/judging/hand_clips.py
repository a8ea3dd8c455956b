"""Tells a clip by hand from other factors: it shortens gradients, and always to one norm."""

from __future__ import annotations

from collections import defaultdict

from conformance.watch.judging.case import Together
from conformance.watch.judging.facts import FACTS
from conformance.watch.judging.findings import Findings, said
from conformance.watch.judging.properties import Property

_NEAR = 1e-2
"""Relative: how far norms that were clipped to one limit are apart, with the small number that divides them."""


class HandClips:
    """Of the processes that train together."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._of: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)

    def take(self, together: Together) -> None:
        """A step: the factors below 1, and the norms of what was used with them."""
        for rank, shortened in together.shortened.items():
            self._of[together.here[0].optimizer, rank] += shortened

    def finish(self) -> None:
        for (optimizer, rank), shortened in self._of.items():
            norms = [norm for _, norm in shortened]
            are_clipped = len(norms) > 1 and max(norms) <= min(norms) * (1 + _NEAR)
            if are_clipped:
                self._findings.seen[Property.CLIPPING] += len(norms)
            else:
                self._findings.leave_open(said("ranks.factor", factor=shortened[0][0]), len(norms))
            self._findings.resolve((optimizer, rank), None if are_clipped else FACTS["ranks.factor"])
