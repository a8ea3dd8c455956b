"""Finds calls on tensors that no step uses: losses that no graph connects to the model, and clipping of copies."""

from __future__ import annotations

from collections import Counter
from math import isfinite

from conformance.watch import records
from conformance.watch.judging.findings import Finding, Findings, said
from conformance.watch.judging.stream import Stream

_OFTEN = 3


class Detached:
    """Judges one process. copies: the first calls that clipped parameters which have no gradients and no optimizer."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._copies: list[records.Clipped] = []
        self._clipped: set[int] = set()
        self._backwards = self._cut_off = 0
        self._site: records.Site = None
        self._has_gradients = False

    def feed(self, record: records.Record) -> None:
        match record:
            case records.Clipped():
                self._clipped |= {*record.parameters}
                if record.strange and isfinite(record.limit) and len(self._copies) < _OFTEN:
                    self._copies.append(record)
            case records.Backward():
                self._backwards += 1
                self._cut_off += record.is_cut_off
                self._site = record.site
            case records.Captured():
                self._has_gradients = True
            case records.Stepped():
                self._has_gradients |= bool(record.used) or record.moved or record.closure

    def finish(self, rank: int, stream: Stream) -> None:
        for optimizer in stream.steps:
            self._judge_clips(rank, stream, optimizer)
        steps = sum(stream.steps.values())
        if self._cut_off == self._backwards >= _OFTEN and not self._has_gradients and steps >= _OFTEN:
            says, effect = (
                said("from-the-model.cut-off", passes=self._backwards),
                said("from-the-model.idle", steps=steps),
            )
            self._findings.add(Finding("watch/from-the-model", says, 0, (rank,), self._site, effect))

    def _judge_clips(self, rank: int, stream: Stream, optimizer: int) -> None:
        """Finds clipping of as many tensors, all alike, that never have gradients, while nothing clips those that the
        optimizer steps. A script without clipping has no such call, and a teacher requires no gradients."""
        held = stream.held[optimizer]
        shapes = Counter(tuple(stream.parameters[number].shape) for number in held)
        alike = [one for one in self._copies if Counter(map(tuple, one.strange)) == shapes]
        if len(alike) >= _OFTEN and not held & self._clipped and held & stream.used_ever:
            says = said("clip-something.copies", count=len(held))
            effect = said("clip-something.nothing", limit=alike[0].limit)
            law, site = "watch/clip-something", alike[0].site
            self._findings.add(Finding(law, says, 0, (rank,), site, effect, optimizer))
