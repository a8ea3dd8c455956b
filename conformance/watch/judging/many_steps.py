"""Detects bugs that only many steps prove, because a single step may look the same by chance."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from conformance.watch.judging.findings import Finding, Findings, said
from conformance.watch.judging.properties import FACTS
from conformance.watch.judging.windows import Window

_OFTEN = 3
"""Number of steps in a row that do not look wrong by chance."""

_WITHOUT = "watch/has-gradient"


@dataclass
class _Tally:
    """The steps of an optimizer on a rank.

    right, others: the number of correct steps, and of those that are neither correct nor wrong. wrong, first: by law
    and `Finding.pattern`, the number of violations, and the first."""

    right: int = 0
    others: int = 0
    wrong: Counter[tuple[str, str]] = field(default_factory=Counter)
    first: dict[tuple[str, str], Finding] = field(default_factory=dict)

    @property
    def laws(self) -> set[str]:
        return {law for law, _ in self.wrong}

    @property
    def is_proof(self) -> bool:
        """Whether all steps break the same law in the same way, apart from correct steps."""
        # A step without gradients does nothing, so a script with other steps may take some.
        may_be_chance = self.right > 0 and (self.wrong.total() == 1 or _WITHOUT in self.laws)
        return len(self.wrong) == 1 and not self.others and not may_be_chance


class Steady:
    """Collects factors that suggest a bug, until enough steps prove it. In one step, hand-written clipping or another
    change may happen to have a factor such as 1/2."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._of: dict[tuple[int, int], _Tally] = defaultdict(_Tally)

    def suspects(self, law: str) -> bool:
        """Whether any step seems to break this law."""
        return any(law in tally.laws for tally in self._of.values())

    @property
    def accuses(self) -> bool:
        """Whether it would report a violation if the script ended now."""
        return any(tally.is_proof and tally.wrong.total() >= _OFTEN for tally in self._of.values())

    def feed(self, factors: Sequence[tuple[int, Finding | None, bool]], windows: Sequence[Window]) -> None:
        """Takes the `Findings.factors` of a step. windows: those of all ranks."""
        for rank, finding, is_right in factors:
            tally = self._of[windows[0].optimizer, rank]
            if finding is None:
                tally.right += is_right
                tally.others += not is_right
                continue
            self._findings.show(finding.key, windows)
            tally.first.setdefault((finding.law, finding.pattern), finding)
            tally.wrong[finding.law, finding.pattern] += finding.steps

    def excuse(self, optimizer: int, rank: int, suspected: Iterable[Finding]) -> None:
        """Drops suspicions that another reason explains."""
        for finding in suspected:
            self._of[optimizer, rank].wrong.pop((finding.law, finding.pattern), None)

    def finish(self) -> None:
        for tally in self._of.values():
            if tally.is_proof:
                [(what, count)] = tally.wrong.items()
                self._findings.add(tally.first[what], count=count)
            elif tally.wrong:
                are_without = tally.laws == {_WITHOUT} and not tally.others
                usual = "coverage.some-steps" if are_without else "ranks.varies"
                for what, count in tally.wrong.items():
                    first = tally.first[what]
                    is_fact = first.says.code in FACTS
                    says = first.says if is_fact else said(usual)
                    self._findings.leave_open(says, count, *((first.step, first.site) if is_fact else ()))
