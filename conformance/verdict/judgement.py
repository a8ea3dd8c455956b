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
from conformance.verdict.evidence import RankEvidence, named
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


def on_every_rank(name: str, without: Sequence[int], text: str) -> Guard:
    """A guard that holds if no rank is ``without`` what it asks for."""
    everywhere = "on every rank"
    return Guard(name, not without, everywhere, f"not on {named(without)}" if without else everywhere, text)


def not_held(
    name: str, expected: str, text: str, observed: str = "", diagnosis: str = "", where: str | None = None
) -> Guard:
    """A guard that does not hold. ``observed``: the text, if nothing shorter says it."""
    return Guard(name, False, expected, observed or text, text, diagnosis=diagnosis, where=where)


def adds_to(left: str, where: str | None) -> Guard:
    return not_held("gradients of no window", "none", left, where=where)


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
            f"rank {rank.outcome.rank} reports {rank.denied}: report what the step of that window leaves, under its "
            "number"
            for rank in self.ranks
            if rank.denied
        ][:1]

    def overrule(self, verdict: Verdict, headline: str, reason: Reason | None = None) -> None:
        """Replace the verdict and its headline, which becomes the first note."""
        self.notes.insert(0, self.headline)
        self.verdict, self.headline, self.reason = verdict, headline, reason
