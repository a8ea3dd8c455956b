"""Judges the records of all processes of a command, launch by launch."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from conformance.watch import records
from conformance.watch.judging.findings import Cause, Findings
from conformance.watch.judging.launch import Launch
from conformance.watch.judging.stream import Stream


class Judge:
    """Assigns the processes of a command to launches, and collects the findings."""

    def __init__(self) -> None:
        self.findings = Findings()
        self._launches: dict[tuple[str, int], Launch] = {}

    def begin(self, began: records.Began) -> Launch:
        """Adds a process to the first launch of its name that does not have this rank yet."""
        self.findings.ranks = max(self.findings.ranks, began.world)
        for number in range(len(self._launches) + 1):
            launch = self._launches.setdefault((began.launch, number), Launch(began.world, self.findings))
            if began.rank not in launch.streams:
                launch.begin(began.rank, Stream(began))
                return launch
        raise AssertionError("unreachable: the last launch is new")

    @property
    def accuses(self) -> bool:
        """Whether it would report a violation if the script ended now."""
        return any(launch.accuses for launch in self._launches.values())

    def finish(self, *, is_whole: bool = True) -> Findings:
        """Judges the whole run and returns the findings. is_whole: the command ended by itself, without an error."""
        for launch in self._launches.values():
            launch.finish(is_whole=is_whole)
        self.findings.drop_consequences()
        # The first violation may be the reason for later ones.
        self.findings.causes = dict(sorted(self.findings.causes.items(), key=lambda item: _step(item[1])))
        return self.findings


def _step(cause: Cause) -> float:
    """The first step; causes of the whole run come last."""
    return inf if cause.first.step is None else cause.first.step


def judged(streams: Iterable[Iterable[records.Record]], *, is_whole: bool = True) -> Findings:
    """The findings of complete streams, one for each process, each starting with `Began`."""
    judge = Judge()
    for stream in streams:
        iterator = iter(stream)
        began = next(iterator)
        assert isinstance(began, records.Began)
        launch = judge.begin(began)
        for record in iterator:
            launch.feed(began.rank, record)
    return judge.finish(is_whole=is_whole)
