"""Takes the records of all processes of a command, launch by launch."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from conformance.watch import records
from conformance.watch.judging.findings import Cause, Findings
from conformance.watch.judging.launch import Launch
from conformance.watch.judging.stream import Stream


class Judge:
    """Takes the records of all processes of a command, and has the findings."""

    def __init__(self) -> None:
        self.findings = Findings()
        self._launches: dict[tuple[str, int], Launch] = {}

    def begin(self, began: records.Began) -> Launch:
        """A process: it belongs to the first launch of its name that has no such rank yet."""
        for number in range(len(self._launches) + 1):
            launch = self._launches.setdefault((began.launch, number), Launch(began.world, self.findings))
            if began.rank not in launch.streams:
                launch.begin(began.rank, Stream(began))
                return launch
        raise AssertionError("there is one launch more than there were")

    @property
    def accuses(self) -> bool:
        """Whether what was seen so far is enough to accuse the script."""
        return any(launch.accuses for launch in self._launches.values())

    def finish(self, *, is_whole: bool = True) -> Findings:
        """is_whole: whether the command came to its end by itself, and without an error."""
        for launch in self._launches.values():
            launch.finish(is_whole=is_whole)
        self.findings.drop_consequences()
        # What shows first may be why the rest does.
        self.findings.causes = dict(sorted(self.findings.causes.items(), key=lambda item: _step(item[1])))
        return self.findings


def _step(cause: Cause) -> float:
    """What is of the whole run comes last."""
    return inf if cause.first.step is None else cause.first.step


def judged(streams: Iterable[Iterable[records.Record]], *, is_whole: bool = True) -> Findings:
    """The findings of whole streams, one for each process, each beginning with `Began`."""
    judge = Judge()
    for stream in streams:
        iterator = iter(stream)
        began = next(iterator)
        assert isinstance(began, records.Began)
        launch = judge.begin(began)
        for record in iterator:
            launch.feed(began.rank, record)
    return judge.finish(is_whole=is_whole)
