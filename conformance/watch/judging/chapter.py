"""What the rules of all properties have in common: when a launch hands them what they judge."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from conformance.watch import records
from conformance.watch.judging.case import Together
from conformance.watch.judging.findings import Findings
from conformance.watch.judging.stream import Stream
from conformance.watch.judging.windows import Window


@dataclass(frozen=True)
class End:
    """What is known when all processes have ended. is_whole: by themselves, well, and all of it was seen. averages:
    whether the ranks are known to average gradients, so that they train one model."""

    streams: Mapping[int, Stream]
    is_whole: bool
    averages: bool


class Chapter:
    """Rules of the processes that train together. A method that a chapter does not need does nothing."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings

    @property
    def accuses(self) -> bool:
        """Whether it would accuse the script of what it has seen, if that ended now."""
        return False

    def feed(self, rank: int, record: records.Record, stream: Stream) -> None:
        """A record that the stream of the rank has not seen yet."""

    def follow(self, rank: int, record: records.Record, stream: Stream) -> None:
        """A record that the stream of the rank has just seen."""

    def see(self, window: Window) -> None:
        """The window of a rank."""

    def judge(self, together: Together) -> None:
        """A step of all ranks, whose factors are known where there is one."""

    def judge_right(self, together: Together) -> None:
        """A step of all ranks that uses what was computed, and nothing else."""

    def finish(self, end: End) -> None:
        """All processes have ended."""


class OneRank(Chapter):
    """Rules of one process."""

    def finish_rank(self, rank: int, stream: Stream, end: End) -> None:
        """All processes have ended. stream: of this one."""


class OfEachRank(Chapter):
    """A chapter for each rank by itself."""

    def __init__(self, findings: Findings, make: Callable[[Findings], OneRank]) -> None:
        super().__init__(findings)
        self._of: dict[int, OneRank] = defaultdict(lambda: make(findings))

    def feed(self, rank: int, record: records.Record, stream: Stream) -> None:
        self._of[rank].feed(rank, record, stream)

    def follow(self, rank: int, record: records.Record, stream: Stream) -> None:
        self._of[rank].follow(rank, record, stream)

    def see(self, window: Window) -> None:
        self._of[window.rank].see(window)

    def finish(self, end: End) -> None:
        for rank, stream in end.streams.items():
            self._of[rank].finish_rank(rank, stream, end)
