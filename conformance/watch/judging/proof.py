"""What counts prove: the tally that all rules share which one case alone does not decide."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from conformance.watch.judging.findings import Finding, Findings, Said, said
from conformance.watch.judging.windows import Window

_OFTEN = 3
"""Steps. What one comes to by chance, so many in a row do not."""


@dataclass
class Tally:
    """The cases of a rule, mostly the steps of an optimizer on a rank.

    right, others: how many are right, and how many are neither right nor wrong. wrong, first: by law and
    `Finding.pattern`, how many break the law, and the first of them. fact: what is stated without a proof.
    is_meant: something shows that the script does it on purpose."""

    right: int = 0
    others: int = 0
    wrong: Counter[tuple[str, str]] = field(default_factory=Counter)
    first: dict[tuple[str, str], Finding] = field(default_factory=dict)
    fact: Said | None = None
    is_meant: bool = False

    @property
    def count(self) -> int:
        return self.wrong.total()

    @property
    def all(self) -> int:
        return self.right + self.others + self.count

    def take(self, finding: Finding | None, *, is_right: bool = False) -> None:
        """A case. finding: what it breaks."""
        if finding is None:
            self.right += is_right
            self.others += not is_right
        else:
            self.first.setdefault((finding.law, finding.pattern), finding)
            self.wrong[finding.law, finding.pattern] += 1


Proof: TypeAlias = Callable[[Tally], bool]
"""Whether the wrong cases of a tally prove a violation."""


def once(tally: Tally) -> bool:
    return tally.count > 0


def each(least: int) -> Proof:
    """All cases are wrong in the same way, and there are so many."""
    return lambda tally: len(tally.wrong) == 1 and tally.all == tally.count >= least


def most(share: float) -> Proof:
    """More than this share of all cases is wrong."""
    return lambda tally: tally.count > share * tally.all


class Proofs:
    """The tallies of one rule. at: what a tally is of."""

    def __init__(self, findings: Findings, proof: Proof) -> None:
        self._findings, self._proof = findings, proof
        self._of: dict[Hashable, Tally] = defaultdict(Tally)

    def __getitem__(self, at: Hashable) -> Tally:
        return self._of[at]

    def take(
        self, at: Hashable, finding: Finding | None, windows: Sequence[Window] = (), *, is_right: bool = False
    ) -> Tally:
        """A case. windows: those of all ranks, which show it."""
        if finding is not None and windows:
            self._findings.show(finding.key, windows)
        self._of[at].take(finding, is_right=is_right)
        return self._of[at]

    def are_proof(self, tally: Tally) -> bool:
        return bool(tally.count) and not tally.is_meant and self._proof(tally)

    @property
    def accuses(self) -> bool:
        """Whether it would accuse the script of what it has seen, if that ended now."""
        return any(map(self.are_proof, self._of.values()))

    def finish(self) -> None:
        for tally in self._of.values():
            if self.are_proof(tally):
                for what, finding in tally.first.items():
                    self._findings.add(finding, count=tally.wrong[what])
            elif tally.count and tally.fact is not None:
                first = next(iter(tally.first.values()))
                self._findings.leave_open(tally.fact, tally.count, first.step, first.site)


class Steady(Proofs):
    """Factors that look like a mistake, which a script makes in each step. A factor such as a half may also be what
    clipping by hand, or some other change, happens to come to in one step."""

    def __init__(self, findings: Findings) -> None:
        super().__init__(findings, _is_steady)

    def suspects(self, law: str) -> bool:
        """Whether any step looks as if it broke this law."""
        return any(law == other for tally in self._of.values() for other, _ in tally.wrong)

    @property
    def accuses(self) -> bool:
        return any(self.are_proof(tally) and tally.count >= _OFTEN for tally in self._of.values())

    def feed(self, factors: Sequence[tuple[int, Finding | None, bool]], windows: Sequence[Window]) -> None:
        """What a step says: see `Findings.factors`. windows: those of all ranks."""
        for rank, finding, is_right in factors:
            tally = self.take((windows[0].optimizer, rank), finding, windows, is_right=is_right)
            are_without = {law for law, _ in tally.wrong} == {"watch/has-gradient"} and not tally.others
            tally.fact = said("coverage.some-steps" if are_without else "ranks.varies")

    def finish(self) -> None:
        for tally in self._of.values():
            for first in tally.first.values() if not self.are_proof(tally) else ():
                # Facts of factors are of the whole run.
                first.step = first.site = None
        super().finish()


def _is_steady(tally: Tally) -> bool:
    """Whether all steps say the same, but for those that may be right beside it."""
    laws = {law for law, _ in tally.wrong}
    # A step without gradients does nothing, and one beside others may be meant to.
    is_beside = tally.right > 0 and (tally.count == 1 or "watch/has-gradient" in laws)
    return len(tally.wrong) == 1 and not tally.others and not is_beside
