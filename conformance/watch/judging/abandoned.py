"""Does one of several optimizers step no more, from some step on, while its parameters still get gradients?"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from conformance.watch import records
from conformance.watch.judging.findings import Findings
from conformance.watch.judging.stream import Stream

_OFTEN = 3
"""Steps, and how many times as long as ever before it does not step. The turns of optimizers may be far apart."""


@dataclass
class _Optimizer:
    """steps: how many it made, skips among them. at: how many all had made by then. longest: the most that others made
    between two of them. passes: how many backward passes gave its parameters gradients since; last: the last one."""

    steps: int = 0
    at: int = 0
    longest: int = 0
    passes: int = 0
    last: int = -1


class Abandoned:
    """Of one process."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._of: dict[int, _Optimizer] = defaultdict(_Optimizer)
        self._steps = 0
        self._is_sampled = False

    def feed(self, record: records.Record, stream: Stream) -> None:
        """Of what the stream has taken in."""
        match record:
            case records.Local():
                for optimizer in stream.through(record.backward):
                    of = self._of[optimizer]
                    of.passes += record.backward != of.last
                    of.last = record.backward
            case records.Passed():
                self._is_sampled = True
            case records.Stepped() | records.Skipped():
                of = self._of[record.optimizer]
                if of.steps:
                    of.longest = max(of.longest, self._steps - of.at)
                self._steps += 1
                of.steps, of.at, of.passes = of.steps + 1, self._steps, 0

    def finish(self, stream: Stream) -> None:
        """The process has ended."""
        for optimizer, of in self._of.items() if not self._is_sampled else ():
            still = min(self._steps - of.at, of.passes)
            if of.steps < _OFTEN or still <= _OFTEN * max(of.longest, _OFTEN) or not stream.is_last_user(optimizer):
                continue
            says = f"an optimizer steps no more after its step {of.steps - 1}, and its parameters still get gradients"
            if of.longest:
                self._findings.undecided(says)
            else:
                # What was trained before all else may stay as it is, as a critic of what is trained after it.
                self._findings.note(says)
