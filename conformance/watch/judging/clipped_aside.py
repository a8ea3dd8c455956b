"""Does a script clip gradients that no step uses, in place of those that the next step uses?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import isfinite

from conformance.watch import records
from conformance.watch.judging.case import factor_of
from conformance.watch.judging.findings import Findings

_OFTEN = 3
"""Times: a script does the same in each window."""


@dataclass
class _Call:
    """Clipping that has made gradients smaller. left: the parameters whose gradients are still there. versions: those
    of weights by then. stepped: the optimizers that have stepped since. is_instead: one of them had nothing clipped.
    is_fed: some of its parameters got gradients since."""

    left: set[int]
    versions: records.Versions
    stepped: set[str] = field(default_factory=set)
    is_instead: bool = False
    is_fed: bool = False

    def has_changed(self, versions: records.Versions) -> bool:
        """Whether other weights have since than those that were stepped: a script may have used what it clipped to
        change them by hand."""
        return any(self.versions.get(one) != versions[one] for one in versions.keys() - self.stepped)


@dataclass
class _Line:
    """How often what it clipped was used, or may have been, and how often it was cleared. again: how often it clipped
    what was left from the last time, after a step of which nothing was clipped."""

    used: int = 0
    cleared: int = 0
    again: int = 0


class ClippedAside:
    """Of one process."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._lines: dict[tuple[str, int], _Line] = defaultdict(_Line)
        self._calls: dict[tuple[str, int], _Call] = {}
        self._clipped: set[int] = set()
        self._versions: records.Versions = {}
        self._is_sampled = False

    def feed(self, record: records.Record) -> None:
        match record:
            case records.Backward():
                self._versions = record.versions
            case records.Clipped():
                self._clipped |= {*record.parameters}
                if record.parameters and record.site is not None and isfinite(record.limit):
                    self._clip((str(record.site[0]), int(record.site[1])), record)
            case records.Stepped():
                self._step(record)
            case records.Skipped():
                self._forget()
            case records.Cleared():
                self._clear(record.parameters, record.versions, is_known=not record.moved)
            case records.Local():
                for call in self._calls.values():
                    call.is_fed |= not call.left.isdisjoint(record.parameters)
                # What is None by now was set so by hand.
                self._clear(record.fresh, self._versions)
            case records.Passed():
                self._is_sampled = True

    def finish(self) -> None:
        """The process has ended."""
        for (file, number), line in self._lines.items() if not self._is_sampled else ():
            if line.again >= _OFTEN:
                self._findings.undecided(
                    f"gradients that are clipped in {file}:{number} are left from before, and those of the step that "
                    "follows are not clipped"
                )
            elif line.cleared >= _OFTEN and not line.used:
                self._findings.undecided(
                    f"gradients that are clipped in {file}:{number} are cleared before a step uses them, and those of "
                    "the step that follows are not clipped"
                )

    def _clip(self, line: tuple[str, int], record: records.Clipped) -> None:
        last = self._calls.get(line)
        is_left = last is not None and not last.is_fed and {*record.parameters} == last.left
        if last is not None and is_left and last.is_instead:
            self._lines[line].again += not last.has_changed(self._versions)
        # What is left has been made smaller before.
        if is_left or factor_of(record) < 1:
            self._calls[line] = _Call({*record.parameters}, self._versions)

    def _step(self, step: records.Stepped) -> None:
        parameters = {*step.parameters}
        for line, call in [*self._calls.items()]:
            if parameters & call.left:
                self._lines[line].used += 1
                del self._calls[line]
            else:
                call.stepped.add(str(step.optimizer))
                call.is_instead |= not parameters & self._clipped
        self._clipped.clear()

    def _forget(self) -> None:
        """It is not known which parameters a step that is left out would have stepped."""
        self._calls.clear()
        self._clipped.clear()

    def _clear(self, parameters: Iterable[int], versions: records.Versions, *, is_known: bool = True) -> None:
        """is_known: whether weights have changed since only if `versions` say so."""
        for line, call in [*self._calls.items()]:
            call.left.difference_update(parameters)
            if call.left:
                continue
            is_used = not call.is_instead or call.has_changed(versions)
            self._lines[line].used += is_used
            self._lines[line].cleared += is_known and not is_used
            del self._calls[line]
