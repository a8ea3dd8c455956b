"""Whether a factor that looks like a mistake is one: a mistake in a script is made in each step.

A factor such as a half may also be what clipping by hand, or some other change, happens to come to in one step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from conformance.watch.judging.findings import Finding, Findings
from conformance.watch.judging.windows import Window

VARIES = "factors look wrong in some steps, and otherwise in others, as if the script changed gradients by hand"


@dataclass
class _Of:
    """What the steps of an optimizer on a rank say. right: how many have the right factor. others: how many have a
    factor that looks like nothing known. first, counts: by law, of those that look like its violation."""

    right: int = 0
    others: int = 0
    first: dict[str, Finding] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=lambda: defaultdict(int))


class Steady:
    """Of the processes that train together."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._of: dict[tuple[int, int], _Of] = defaultdict(_Of)

    def suspects(self, law: str) -> bool:
        """Whether any step looks as if it broke this law."""
        return any(law in of.counts for of in self._of.values())

    def feed(self, factors: Sequence[tuple[int, Finding | None, bool]], windows: Sequence[Window]) -> None:
        """What a step says: see `Findings.factors`. windows: those of all ranks."""
        for rank, finding, is_right in factors:
            of = self._of[windows[0].optimizer, rank]
            if finding is not None:
                self._findings.show(finding.key, windows)
                of.first.setdefault(finding.law, finding)
                of.counts[finding.law] += 1
            elif is_right:
                of.right += 1
            else:
                of.others += 1

    def finish(self) -> None:
        for of in self._of.values():
            if not of.counts:
                continue
            # A step without gradients does nothing, and one beside others may be meant to.
            is_beside = of.right > 0 and (sum(of.counts.values()) == 1 or "watch/has-gradient" in of.counts)
            if of.others or len(of.counts) > 1 or is_beside:
                self._findings.undecided(VARIES, sum(of.counts.values()))
                continue
            for law, finding in of.first.items():
                self._findings.add(finding, count=of.counts[law])
