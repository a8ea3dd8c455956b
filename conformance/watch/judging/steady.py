"""Whether a factor that looks like a mistake is one: a mistake in a script is made in each step.

A factor such as a half may also be what clipping by hand, or some other change, happens to come to in one step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from conformance.watch.judging.findings import Finding, Findings, said
from conformance.watch.judging.windows import Window

_OFTEN = 3
"""Steps. What one comes to by chance, so many in a row do not."""


@dataclass
class _Of:
    """What the steps of an optimizer on a rank say. right: how many have the right factor. others: how many have a
    factor that looks like nothing known. first, counts: by law and `Finding.pattern`, of those that look like its
    violation."""

    right: int = 0
    others: int = 0
    first: dict[tuple[str, str], Finding] = field(default_factory=dict)
    counts: dict[tuple[str, str], int] = field(default_factory=lambda: defaultdict(int))

    @property
    def is_steady(self) -> bool:
        """Whether all steps say the same, but for those that may be right beside it."""
        laws = {law for law, _ in self.counts}
        # A step without gradients does nothing, and one beside others may be meant to.
        is_beside = self.right > 0 and (sum(self.counts.values()) == 1 or "watch/has-gradient" in laws)
        # So may be some on gradients of before, in a search along a line, or while they hardly change.
        is_beside |= self.right > 1 and "watch/fresh" in laws
        return len(self.counts) == 1 and not self.others and not is_beside


class Steady:
    """Of the processes that train together."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._of: dict[tuple[int, int], _Of] = defaultdict(_Of)

    def suspects(self, law: str) -> bool:
        """Whether any step looks as if it broke this law."""
        return any(law == other for of in self._of.values() for other, _ in of.counts)

    @property
    def accuses(self) -> bool:
        """Whether it would accuse the script of what it has seen several times, if that ended now."""
        return any(of.is_steady and sum(of.counts.values()) >= _OFTEN for of in self._of.values())

    def feed(self, factors: Sequence[tuple[int, Finding | None, bool]], windows: Sequence[Window]) -> None:
        """What a step says: see `Findings.factors`. windows: those of all ranks."""
        for rank, finding, is_right in factors:
            of = self._of[windows[0].optimizer, rank]
            if finding is not None:
                self._findings.show(finding.key, windows)
                of.first.setdefault((finding.law, finding.pattern), finding)
                of.counts[finding.law, finding.pattern] += 1
            elif is_right:
                of.right += 1
            else:
                of.others += 1

    def finish(self) -> None:
        for of in self._of.values():
            if of.is_steady:
                [(what, finding)] = of.first.items()
                self._findings.add(finding, count=of.counts[what])
            elif of.counts:
                are_without = {law for law, _ in of.counts} == {"watch/has-gradient"} and not of.others
                code = "coverage.some-steps" if are_without else "ranks.varies"
                self._findings.leave_open(said(code), sum(of.counts.values()))
