"""What a case's verdict is, with its evidence and guards."""

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
from conformance.verdict.precedence import Ground, overrules
from conformance.verdict.setup import Mistake
from conformance.workloads.behaviour import Way

SHARDS = "shards differ"
SAMPLES = "all samples read"
PLACE = "resumed at the next window"
RESTORED = "resumed as it was stopped"
WEIGHTS = "weights change in steps only"
MULTIPLE = "gradients of each window"
PARAMETERS = "each parameter"
BUFFERS = "buffers of the model"
COLLECTIVES = "collectives while training"
LOSS = "precision of the loss"
DRAWS = "random numbers after the resume"
AVERAGES = "averages of weights after the resume"

#: Mistakes that several guards show, or one of several that a guard shows: they tell causes of failures apart.
POSITION = "goes on elsewhere in the data than it was stopped"
OTHER_ORDER = "goes through an epoch in the order of another one"
LEFT_OUT = "leaves samples of an epoch out"
OWN_ORDERS = "the ranks go through an epoch in different orders"


@dataclass(frozen=True)
class Guard:
    """``text`` is the headline if the guard does not hold. ``ground``: what that is against what else is wrong.
    ``diagnosis``: which mistake breaks it, where its name leaves that open. ``where``: the line that breaks it, if one
    is known.
    """

    name: str
    holds: bool
    expected: str
    observed: str
    text: str
    ground: Ground = "guard"
    diagnosis: str = ""
    where: str | None = None

    @property
    def explains(self) -> bool:
        """Whether it says nothing against right numbers, but explains wrong ones."""
        return overrules("right numbers", self.ground) and self.ground != "exchange"


def guard(
    name: str,
    expected: str,
    text: str | None,
    observed: str | None = None,
    diagnosis: str = "",
    *,
    ground: Ground = "guard",
    where: str | None = None,
) -> Guard:
    """A guard that holds unless there is a ``text``. ``observed``: the text, or what is expected, if nothing shorter
    says it."""
    seen = (text or expected) if observed is None else observed
    return Guard(name, not text, expected, seen, text or "", ground, diagnosis, where)


def adds_to(left: str, where: str | None) -> Guard:
    return guard("gradients of no window", "none", left, where=where)


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
    def broken(self) -> list[Guard]:
        """The guards that do not hold, without those that only explain wrong numbers."""
        return [guard for guard in self.guards if not guard.holds and not guard.explains]

    def allows(self, ground: Ground) -> bool:
        """Whether nothing that was found overrules it."""
        found: set[Ground] = {guard.ground for guard in self.guards if not guard.holds}
        found |= {"known bug"} if self.suspects.explained_by else set()
        found |= {"law"} if self.findings else set()
        return not any(overrules(one, ground) for one in found)

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
            f"rank {rank.number} reports {rank.denied}: report what the step of that window leaves, under its number"
            for rank in self.ranks
            if rank.denied
        ][:1]

    def overrule(self, verdict: Verdict, headline: str, reason: Reason | None = None) -> None:
        """Replace the verdict and its headline, which becomes the first note."""
        self.notes.insert(0, self.headline)
        self.verdict, self.headline, self.reason = verdict, headline, reason

    def mistaken(self, mistake: Mistake, reason: Reason | None = None) -> None:
        """The adapter's mistake decides."""
        self.mistake = mistake
        self.overrule("SETUP", mistake.text, reason)
