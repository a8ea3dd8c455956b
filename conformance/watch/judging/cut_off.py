"""Do losses that go backward come from a model?"""

from __future__ import annotations

from conformance.watch import records
from conformance.watch.judging.findings import Finding, Findings, said
from conformance.watch.judging.stream import Stream

_OFTEN = 3


class CutOff:
    """Of one process."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._backwards = self._cut_off = 0
        self._site: records.Site = None
        self._has_gradients = False

    def feed(self, record: records.Record) -> None:
        match record:
            case records.Backward():
                self._backwards += 1
                self._cut_off += record.is_cut_off
                self._site = record.site
            case records.Captured():
                self._has_gradients = True
            case records.Stepped():
                self._has_gradients |= bool(record.used) or record.moved or record.closure

    def finish(self, rank: int, stream: Stream) -> None:
        """The process has ended."""
        steps = sum(stream.steps.values())
        if self._cut_off == self._backwards >= _OFTEN and not self._has_gradients and steps >= _OFTEN:
            # What trains without gradients of its own calls no backward for nothing, each time of another number.
            says, effect = said("loss.cut-off", losses=self._backwards), said("loss.cut-off.effect", steps=steps)
            self._findings.add(Finding("watch/from-the-model", says, 0, (rank,), self._site, effect))
