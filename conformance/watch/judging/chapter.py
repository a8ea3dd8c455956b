"""The interface of the rules: a launch calls these methods with records, windows and steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from conformance.watch import records
from conformance.watch.judging.equations import Together
from conformance.watch.judging.findings import Findings
from conformance.watch.judging.stream import Stream
from conformance.watch.judging.windows import Window

Kinds: TypeAlias = tuple[type[records.Record], ...]


@dataclass(frozen=True)
class End:
    """The state when all processes have ended. is_whole: all ended by themselves without an error, and everything was
    seen. averages: the ranks are known to average gradients, so they train one model."""

    streams: Mapping[int, Stream]
    is_whole: bool
    averages: bool


class Chapter:
    """Rules for processes that train together. Every method does nothing by default.

    fed, followed: the kinds of records that `feed` and `follow` take."""

    fed: Kinds = ()
    followed: Kinds = ()

    def __init__(self, findings: Findings) -> None:
        self._findings = findings

    @property
    def accuses(self) -> bool:
        """Whether it would report a violation if the script ended now."""
        return False

    def feed(self, rank: int, record: records.Record, stream: Stream) -> None:
        """Takes a record before the rank's stream does."""

    def follow(self, rank: int, record: records.Record, stream: Stream) -> None:
        """Takes a record after the rank's stream did."""

    def see(self, window: Window) -> None:
        """Takes a window of a rank."""

    def judge(self, together: Together) -> None:
        """Judges a step of all ranks, after its factors were determined."""

    def judge_right(self, together: Together) -> None:
        """Judges a step of all ranks that uses the computed gradients and nothing else."""

    def finish(self, end: End) -> None:
        """Judges the whole run, after all processes have ended."""


class OneRank(Chapter):
    """Rules for one process."""

    def finish_rank(self, rank: int, stream: Stream, end: End) -> None:
        """Judges the whole run of this process, after all have ended."""


class OfEachRank(Chapter):
    """Hands each rank's events to a separate chapter."""

    def __init__(self, findings: Findings, make: type[OneRank]) -> None:
        super().__init__(findings)
        self.fed, self.followed = make.fed, make.followed
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
