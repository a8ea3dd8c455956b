"""Clipping that goes astray: it clips copies of what the optimizer steps."""

from __future__ import annotations

from collections import Counter
from math import isfinite

from conformance.watch import records
from conformance.watch.judging.findings import Finding, Findings
from conformance.watch.judging.stream import Stream

_OFTEN = 3


class Astray:
    """Of one process."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._strange: list[records.Clipped] = []
        self._clipped: set[int] = set()

    def feed(self, record: records.Record) -> None:
        if isinstance(record, records.Clipped):
            self._clipped |= {*record.parameters}
            if record.strange and isfinite(record.limit) and len(self._strange) < _OFTEN:
                self._strange.append(record)

    def finish(self, rank: int, stream: Stream) -> None:
        """The process has ended."""
        for optimizer in stream.steps:
            self._judge_clips(rank, stream, optimizer)

    def _judge_clips(self, rank: int, stream: Stream, optimizer: int) -> None:
        """Is what is clipped as many tensors, all alike, that never have a gradient, while nothing ever clips what the
        optimizer steps? Who wants no clipping calls for none, and a teacher is not trained."""
        held = stream.held[optimizer]
        shapes = Counter(tuple(stream.parameters[number].shape) for number in held)
        alike = [one for one in self._strange if Counter(map(tuple, one.strange)) == shapes]
        if len(alike) >= _OFTEN and not held & self._clipped and held & stream.used_ever:
            says = f"what is clipped is no parameter of an optimizer: {len(held)} others, alike, without gradients"
            effect = f"no gradient was clipped, and the limit is {alike[0].limit:g}"
            finding = Finding("watch/clip-something", says, 0, (rank,), alike[0].site, effect, optimizer)
            self._findings.add(finding)
