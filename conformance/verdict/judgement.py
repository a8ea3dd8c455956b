"""What a case's verdict is, with its evidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from conformance.laws.checking import Finding, Verified, findings
from conformance.laws.run import Run
from conformance.oracle.accepted_readings import Reading
from conformance.oracle.power import Power
from conformance.oracle.recurrence import Trajectory
from conformance.results.records import Behaviour, Reason, Verdict
from conformance.verdict.comparison import Difference, Divergence
from conformance.verdict.diagnosis import Suspects
from conformance.verdict.evidence import RankEvidence
from conformance.verdict.guard import Guard
from conformance.verdict.setup import Mistake
from conformance.workloads.behaviour import Way


@dataclass
class Judgement:
    """A verdict and its evidence. Windows and steps count from 0. ``runs``: as laws see them, one for each life."""

    verdict: Verdict
    headline: str
    reason: Reason | None = None
    ranks: tuple[RankEvidence, ...] = ()
    runs: tuple[Run, ...] = ()
    laws: tuple[Verified, ...] = ()
    notes: list[str] = field(default_factory=list)
    guards: tuple[Guard, ...] = ()
    trajectory: Trajectory | None = None
    reading: Reading | None = None
    power: Power | None = None
    difference: Difference | None = None
    divergence: Divergence | None = None
    mistake: Mistake | None = None
    suspects: Suspects = Suspects()
    ways: tuple[Way, ...] = ()
    behaviour: Sequence[Behaviour] = ()

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The broken laws, MUSTs first."""
        return findings(self.laws)

    @property
    def has_ended_early(self) -> bool:
        """Whether the trainer did not come to its end."""
        return self.verdict in ("CRASH", "HANG", "UNSUPPORTED")

    @property
    def by_weights(self) -> bool:
        """Whether weights alone were compared."""
        return any(attempt.gradients is None for rank in self.ranks for attempt in rank.steps)

    @property
    def denied(self) -> list[str]:
        """What ranks report otherwise than it is seen."""
        return [
            f"rank {rank.outcome.rank} reports {rank.denied}: report what the step of that window leaves, under its "
            "number"
            for rank in self.ranks
            if rank.denied
        ][:1]

    def overrule(self, verdict: Verdict, headline: str, reason: Reason | None = None) -> None:
        """Replace the verdict and its headline, which becomes the first note."""
        self.notes.insert(0, self.headline)
        self.verdict, self.headline, self.reason = verdict, headline, reason
