"""Steps that not all ranks take at one time: a rank may also step for others, or with a part of them, and send the
weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from conformance.watch.judging import pairing
from conformance.watch.judging.facts import FACTS
from conformance.watch.judging.findings import Finding, Findings, Said, said
from conformance.watch.judging.pairing import Pairing
from conformance.watch.judging.stream import Stream
from conformance.watch.judging.windows import Window


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
        are_lost = (window.optimizer in common and times.are_lost(window)) or (
            is_whole and pairing.is_of_shards(window)
        )
        if is_blind:
            self._findings.judged(FACTS["ranks.turns"], count=self._count)
            self._findings.leave_open(said("ranks.turns"), self._count)
        elif are_lost and pairing.are_numbered_alike([window], streams.values()):
            self._findings.judged(finding.shows, count=self._count)
            finding.effect = said("steps-of-some", steps=self._count)
            self._findings.add(finding)
        elif is_whole:
            self._findings.judged(FACTS["ranks.turns"], count=self._count)
            self._findings.leave_open(said("ranks.turns"), self._count)
