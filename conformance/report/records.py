"""The lines of a results file as frozen value classes: schema version 3, described in SCHEMA.md and
schema.json.

A field with a default may be absent from the file. Weights and gradients are flattened, one number a
parameter, in the order of `CaseRecord.parameters`. Errors and bounds are absolute, in the unit of the
quantity.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

SCHEMA_VERSION = 3

Numbers = tuple[float | None, ...]
VerdictName = Literal[
    "PASS (exact)", "PASS (bounded)", "FAIL (numerics)", "FAIL (law)", "DIVERGED", "HANG", "CRASH",
    "UNSUPPORTED", "UNAVAILABLE", "INCONCLUSIVE",
]  # fmt: skip


@dataclass(frozen=True)
class LawText:
    """One of the laws that every case was held to."""

    law: str
    level: Literal["MUST", "SHOULD"]
    says: str


@dataclass(frozen=True)
class Header:
    """The first line: what ran, where, and how many cases were planned; `notes` are shown before anything else."""

    tool: str
    version: str
    started: str
    command: str
    planned: int
    seed: int | None = None
    machine: dict[str, object] = field(default_factory=dict)
    laws: tuple[LawText, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Stage:
    """One stage of the arithmetic of a step. `bits` are needed where `available` are there; `step` is the
    tightest.
    """

    stage: str
    exact: bool
    bits: int | None = None
    available: int | None = None
    step: int | None = None


@dataclass(frozen=True)
class Certificate:
    """Whether every intermediate value is exactly representable; `reason` says why not."""

    exact: bool
    stages: tuple[Stage, ...] = ()
    reason: str | None = None


@dataclass(frozen=True)
class Power:
    """How far the nearest catalogued fault lies outside what this case accepts: effect over bound."""

    value: float
    fault: str | None = None
    text: str | None = None


@dataclass(frozen=True)
class Guard:
    """A condition that must hold before equality means anything."""

    name: str
    holds: bool
    expected: str
    observed: str


@dataclass(frozen=True)
class Step:
    """State after one optimizer step, and the gradients that the optimizer saw in it."""

    step: int
    window: int
    expected: Numbers
    observed: Numbers
    error: Numbers | None = None
    bound: Numbers | None = None
    ulp: Numbers | None = None
    gradient_expected: Numbers | None = None
    gradient_observed: Numbers | None = None
    gradient_error: Numbers | None = None
    gradient_bound: Numbers | None = None


@dataclass(frozen=True)
class Diverged:
    """The weights of each rank after the first step in which they differ."""

    step: int
    weights: tuple[Numbers, ...]


@dataclass(frozen=True)
class FirstDifference:
    """Where the trainer first left the right answer."""

    step: int
    quantity: Literal["weights", "gradient"]
    parameter: str
    expected: float | None
    observed: float | None
    error: float | None = None
    bound: float | None = None


@dataclass(frozen=True)
class Collective:
    """How often a rank called one collective, and how many bytes it gave to it in all."""

    count: int
    bytes: int


@dataclass(frozen=True)
class Rank:
    """What became of one process. `traceback`, `stack` and `output` come from the trainer and are never
    trusted.
    """

    rank: int
    exit: str
    output: str = ""
    stack: str | None = None
    traceback: str | None = None
    host: str | None = None
    collectives: dict[str, Collective] = field(default_factory=dict)


@dataclass(frozen=True)
class RankTraffic:
    """Bytes of one rank in an optimizer step, the mean over all windows. Of gradients and weights: `sent` and
    `received` in messages between two ranks, `reduced` what was handed to collectives, and `ring` what a rank sends of
    that if they go round a ring. `other` is all else that was sent or handed over. The formulas' numbers are null for a
    backend that has none.
    """

    sent: float
    received: float
    reduced: float
    ring: float
    other: float
    expected_sent: float | None = None
    expected_received: float | None = None
    expected_reduced: float | None = None


@dataclass(frozen=True)
class Traffic:
    """What the ranks sent each other. `gradient`: the bytes of all gradients, as they are sent."""

    gradient: int
    ranks: tuple[RankTraffic, ...]


@dataclass(frozen=True)
class Moment:
    """Something that a rank did. `time` is in milliseconds since the first moment of the same list; `where` a line of
    the trainer's or of its framework, as in train.py:41; `marked` if it is what broke a law.
    """

    rank: int
    time: float
    event: str
    label: str
    where: str | None = None
    micro_batch: int | None = None
    marked: bool = False


@dataclass(frozen=True)
class Finding:
    """A law that was broken, `count` times by one line. `effect` is what that does to the numbers, `observed` what
    they did; `slice` is the shortest piece of the trace that shows it.
    """

    law: str
    level: Literal["MUST", "SHOULD"]
    says: str
    contradiction: str
    mend: str
    count: int
    ranks: tuple[int, ...]
    effect: str | None = None
    observed: str | None = None
    window: int | None = None
    where: str | None = None
    slice: tuple[Moment, ...] = ()


@dataclass(frozen=True)
class Join:
    """A collective in which ranks met: the places of their moments in the timeline."""

    moments: tuple[int, ...]


@dataclass(frozen=True)
class Timeline:
    """What all ranks did in one window (null: before training), rank by rank. `cut`: events left out."""

    moments: tuple[Moment, ...]
    window: int | None = None
    joins: tuple[Join, ...] = ()
    cut: int = 0


@dataclass(frozen=True)
class CaseRecord:
    """One case: workload x layout x precision x backend on one trainer, with its verdict and the evidence for
    it.
    """

    id: str
    trainer: str
    backend: str
    path: str
    precision: str
    workload: str
    verdict: VerdictName
    headline: str
    command: str
    target: str = ""
    layout: str = ""
    device: str = "cpu"
    world_size: int | None = None
    accumulation: int | None = None
    micro_batch_size: int | None = None
    seconds: float | None = None
    notes: tuple[str, ...] = ()
    certificate: Certificate | None = None
    power: Power | None = None
    guards: tuple[Guard, ...] = ()
    parameters: tuple[str, ...] = ()
    steps: tuple[Step, ...] = ()
    skips: tuple[int, ...] = ()
    scales: tuple[float, ...] = ()
    diverged: Diverged | None = None
    first_difference: FirstDifference | None = None
    diagnosis: str | None = None
    semantics: str | None = None
    ranks: tuple[Rank, ...] = ()
    traffic: Traffic | None = None
    laws: dict[str, int] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    timeline: Timeline | None = None


@dataclass(frozen=True)
class Mutant:
    """A trainer with one seeded bug, the verdict that each case gave it, the laws that it broke, and the checks of its
    numbers that caught it. `caught` is null for one that cannot run on this machine.
    """

    mutant: str
    what: str
    verdicts: dict[str, VerdictName]
    caught: bool | None
    by: tuple[str, ...] = ()
    laws: tuple[str, ...] = ()


@dataclass(frozen=True)
class Mutants:
    """The table mutant x check."""

    rows: tuple[Mutant, ...]


@dataclass(frozen=True)
class Footer:
    """The last line: it proves that nothing is missing."""

    finished: str
    cases: int
    verdicts: dict[str, int]
    complete: bool
