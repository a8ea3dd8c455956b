"""A case's verdict, with its evidence and guards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from conformance.laws.checking import Finding, Verified, findings
from conformance.laws.subjects import Run
from conformance.oracle.accepted_readings import Reading
from conformance.oracle.power import Power
from conformance.oracle.recurrence import Trajectory
from conformance.results.result_lines import Behaviour, Reason, Verdict
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
PARTS = "each part of a window's gradients"
BUFFERS = "buffers of the model"
COLLECTIVES = "collectives while training"
LOSS = "precision of the loss"
DRAWS = "random numbers after the resume"
AVERAGE = "average of the weights"
AVERAGES = "averages of weights after the resume"

#: What to change if samples of an epoch are left out.
ONCE = "train on each sample once in an epoch"

#: Bugs that several guards find, or that a guard can find besides others: they tell problems apart.
POSITION = "resumes at another place in the data"
OTHER_ORDER = "reads an epoch in the order of another one"
LEFT_OUT = "leaves out samples of an epoch"
OWN_ORDERS = "ranks read an epoch in different orders"


@dataclass(frozen=True)
class Guard:
    """A check that comes before numbers. ``text``: the headline if it fails. ``ground``: its rank among other problems.
    ``diagnosis``: the bug, if the name leaves it open. ``where``: the line that fails it, if known.
    ``advice``: what to change, if known.
    """

    name: str
    passed: bool
    expected: str
    observed: str
    text: str
    ground: Ground = "guard"
    diagnosis: str = ""
    where: str | None = None
    advice: str = ""

    @property
    def explains(self) -> bool:
        """Whether its failure only explains wrong numbers and does not count against correct ones."""
        return overrules("right numbers", self.ground) and self.ground != "exchange"


class Told(NamedTuple):
    """A mistake. text: what happened. advice: what to change."""

    text: str
    advice: str = ""


def in_one(text: str, advice: str | None) -> str:
    """A mistake and what to change, in one line."""
    return f"{text}; {advice}" if advice else text


def guard(
    name: str,
    expected: str,
    text: str | Told | None,
    observed: str | None = None,
    diagnosis: str = "",
    *,
    ground: Ground = "guard",
    where: str | None = None,
    advice: str = "",
) -> Guard:
    """A guard that passes unless there is a ``text``. ``observed`` defaults to the text, or to ``expected``."""
    if isinstance(text, Told):
        text, advice = text
    seen = (text or expected) if observed is None else observed
    return Guard(name, not text, expected, seen, text or "", ground, diagnosis, where, advice)


def adds_to(left: Told, where: str | None) -> Guard:
    return guard("gradients of no window", "none", left, where=where)


@dataclass
class Judgement:
    """A verdict and its evidence. Windows and steps count from 0. ``runs``: one for each life, as laws see them."""

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
        """The failed guards, without those that only explain wrong numbers."""
        return [guard for guard in self.guards if not guard.passed and not guard.explains]

    def allows(self, ground: Ground) -> bool:
        """Whether no problem that was found overrules this ground."""
        found: set[Ground] = {guard.ground for guard in self.guards if not guard.passed}
        found |= {"known bug"} if self.suspects.explained_by else set()
        found |= {"law"} if self.findings else set()
        return not any(overrules(one, ground) for one in found)

    @property
    def has_ended_early(self) -> bool:
        """Whether the trainer did not finish."""
        is_misused = self.mistake is not None and self.mistake.kind == "task"
        return is_misused or self.verdict in ("CRASH", "HANG", "UNSUPPORTED")

    @property
    def by_weights(self) -> bool:
        """Whether only weights were compared."""
        return any(attempt.gradients is None for rank in self.ranks for attempt in rank.steps)

    @property
    def denied(self) -> list[str]:
        """The first report of a rank that contradicts what the recorder saw."""
        return [
            f"rank {rank.number} reports {rank.denied}: report the weights after the step, under the window's number"
            for rank in self.ranks
            if rank.denied
        ][:1]

    @property
    def said(self) -> str:
        """The headline and what to change, in one line."""
        return in_one(self.headline, self.reason.advice if self.reason else None)

    def overrule(self, verdict: Verdict, headline: str, reason: Reason | None = None) -> None:
        """Replace the verdict and its headline, which becomes the first note."""
        self.notes.insert(0, self.said)
        self.verdict, self.headline, self.reason = verdict, headline, reason

    def mistaken(self, mistake: Mistake, reason: Reason | None = None) -> None:
        """Replaces the verdict by SETUP, for a bug of the adapter."""
        self.mistake = mistake
        self.overrule("SETUP", mistake.text, reason)
