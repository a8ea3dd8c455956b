"""The lines of a results file, and what is in them.

This is the one description of the format: `plain.py` reads and writes what is declared here, and
`python -m conformance.results.schema` writes SCHEMA.md and schema.json from it.

A field with a default may be absent from the file. Vectors have one number for each parameter, in the order of
`CaseRecord.parameters`. Errors and bounds are absolute, in the unit of the quantity.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeAlias, get_args

SCHEMA_VERSION = 3

Vector: TypeAlias = tuple[float | None, ...]
Level: TypeAlias = Literal["MUST", "SHOULD"]
Verdict: TypeAlias = Literal[
    "UNSUPPORTED", "UNAVAILABLE", "PASS (exact)", "PASS (bounded)",
    "INCONCLUSIVE", "FAIL (numerics)", "FAIL (law)", "DIVERGED", "HANG", "CRASH",
]  # fmt: skip

PASSED: tuple[Verdict, ...] = ("PASS (exact)", "PASS (bounded)")
NOT_RUN: tuple[Verdict, ...] = ("UNSUPPORTED", "UNAVAILABLE")
NOT_CONFORMING: tuple[Verdict, ...] = tuple(name for name in get_args(Verdict) if name not in PASSED + NOT_RUN)


@dataclass(frozen=True)
class Header:
    """The first line: what ran, where, and how many cases were planned."""

    tool: Annotated[str, "`trainer-conformance`"]
    version: Annotated[str, "version of the tool"]
    started: Annotated[str, "date and time, ISO 8601"]
    command: Annotated[str, "the command that was run"]
    planned: Annotated[int, "how many cases the run was to have"]
    seed: Annotated[int | None, "seed of everything random"] = None
    machine: Annotated[
        dict[str, Any], "names and values: versions, platform, processors; null where something is missing"
    ] = field(default_factory=dict)
    notes: Annotated[
        tuple[str, ...],
        "what to know of the whole run before anything else: which trainers could not be forked, why, and what to do",
    ] = ()
    laws: Annotated[tuple[LawText, ...], "the laws that every case was held to"] = ()


@dataclass(frozen=True)
class LawText:
    """One of the laws that every case was held to."""

    law: Annotated[str, "id, chapter and name: `amp/unscale-before-clip`"]
    level: Annotated[Level, "breaking a MUST fails the case; breaking a SHOULD is a warning"]
    says: Annotated[str, "the law in one sentence"]


@dataclass(frozen=True)
class CaseRecord:
    """A line for each case: workload x layout x precision x backend on one trainer, its verdict, and the evidence for
    it.
    """

    id: Annotated[str, "readable id, unique for its trainer"]
    trainer: Annotated[str, "name of the trainer"]
    target: Annotated[str, "where the trainer was found: module or file, and function"]
    command: Annotated[str, "runs this one case again"]
    path: Annotated[str, "row of the matrix: backend and layout"]
    backend: Annotated[str, "`single`, `ddp`, `horovod`, ..."]
    layout: Annotated[str, "how a global batch is split: `samples`, `batched`, `accumulated`"]
    world_size: Annotated[int, "ranks"]
    accumulation: Annotated[int, "micro-batches in a window"]
    precision: Annotated[str, "column of the matrix: `fp64`, `fp32`, `bf16`, `fp16`, `fp16-compression`, `apex-O1`"]
    workload: Annotated[str, "what was trained"]
    device: Annotated[str, "`cpu` or `cuda`"]
    verdict: Annotated[Verdict, "one of the ten verdicts"]
    headline: Annotated[str, "the verdict's reason in one line; for a case that did not run, why, and what to do"]
    micro_batch_size: Annotated[int | None, "samples in a micro-batch"] = None
    seconds: Annotated[float | None, "how long the case took"] = None
    notes: Annotated[tuple[str, ...], "more to know about the case, a line each"] = ()
    certificate: Annotated[Certificate | None, "whether the case is exact"] = None
    power: Annotated[Power | None, "whether the case can fail"] = None
    guards: Annotated[tuple[Guard, ...], "what must hold before equality means anything"] = ()
    parameters: Annotated[tuple[str, ...], "names of the entries of each vector"] = ()
    steps: Annotated[tuple[Step, ...], "the trajectory"] = ()
    skips: Annotated[tuple[int, ...], "windows whose step was skipped"] = ()
    scales: Annotated[tuple[float, ...], "loss scale of each window"] = ()
    diverged: Annotated[Diverged | None, "where the weights of the ranks first differed"] = None
    first_difference: Annotated[FirstDifference | None, "where the trainer first left the right answer"] = None
    diagnosis: Annotated[str | None, "the known bug that gives these numbers"] = None
    semantics: Annotated[str | None, "how the trainer handles a short last window"] = None
    ranks: Annotated[tuple[Rank, ...], "how each process ended"] = ()
    traffic: Annotated[Traffic | None, "what the ranks sent each other"] = None
    laws: Annotated[
        dict[str, int], "for each law that this case exercised, in how many windows of how many ranks it was checked"
    ] = field(default_factory=dict)
    findings: Annotated[tuple[Finding, ...], "the laws that were broken"] = ()
    timeline: Annotated[Timeline | None, "what the ranks did, for a case with something to explain"] = None


@dataclass(frozen=True)
class Certificate:
    """Whether every intermediate value is exactly representable."""

    exact: Annotated[bool, "true: no value is rounded, in any order of summation"]
    stages: Annotated[tuple[Stage, ...], "the arithmetic of a step, stage by stage"] = ()
    reason: Annotated[str | None, "why it is refused"] = None


@dataclass(frozen=True)
class Stage:
    """One stage of the arithmetic of a step."""

    stage: Annotated[str, "name"]
    exact: Annotated[bool, "whether this stage rounds nothing"]
    bits: Annotated[int | None, "bits of significand that are needed"] = None
    available: Annotated[int | None, "bits that the precision has"] = None
    step: Annotated[int | None, "the step that needs the most"] = None


@dataclass(frozen=True)
class Power:
    """How far the nearest known fault lies outside what this case accepts."""

    value: Annotated[float, 'effect of the nearest fault over what the case accepts; `"inf"` with a tolerance of zero']
    fault: Annotated[str | None, "the nearest fault"] = None
    text: Annotated[str | None, "a sentence on it"] = None


@dataclass(frozen=True)
class Guard:
    """A condition that must hold before equality means anything."""

    name: Annotated[str, "what must hold"]
    holds: Annotated[bool, "whether it does"]
    expected: Annotated[str, "what is right, in words"]
    observed: Annotated[str, "what was seen, in words"]


@dataclass(frozen=True)
class Step:
    """State after one optimizer step, and the gradients that the optimizer saw in it."""

    step: Annotated[int, "which optimizer step"]
    window: Annotated[int, "which window"]
    expected: Annotated[Vector, "weights after the step, by the oracle"]
    observed: Annotated[Vector, "weights after the step, by the trainer"]
    error: Annotated[Vector | None, "observed minus expected"] = None
    bound: Annotated[Vector | None, "how large |error| may be; null or 0 in an exact case"] = None
    ulp: Annotated[Vector | None, "|error| in units in the last place of the weights' type"] = None
    gradient_expected: Annotated[Vector | None, "gradients as the optimizer should see them"] = None
    gradient_observed: Annotated[Vector | None, "gradients as the optimizer saw them"] = None
    gradient_error: Annotated[Vector | None, "observed minus expected"] = None
    gradient_bound: Annotated[Vector | None, "how large it may be"] = None


@dataclass(frozen=True)
class Diverged:
    """The first step after which the ranks have different weights."""

    step: Annotated[int, "which optimizer step"]
    weights: Annotated[tuple[Vector, ...], "weights after it, a vector for each rank"]


@dataclass(frozen=True)
class FirstDifference:
    """Where the trainer first left the right answer."""

    step: Annotated[int, "which optimizer step"]
    quantity: Annotated[Literal["weights", "gradient"], "what differs"]
    parameter: Annotated[str, "one of the case's `parameters`"]
    expected: Annotated[float | None, "by the oracle"]
    observed: Annotated[float | None, "by the trainer"]
    error: Annotated[float | None, "observed minus expected"] = None
    bound: Annotated[float | None, "how large it may be"] = None


@dataclass(frozen=True)
class Rank:
    """How one process ended. `output`, `stack` and `traceback` come from the trainer and are never trusted."""

    rank: Annotated[int, "which rank"]
    exit: Annotated[str, "how the process ended, in words"]
    output: Annotated[str, "tail of what it printed"] = ""
    stack: Annotated[str | None, "where it was at the time limit"] = None
    traceback: Annotated[str | None, "what it raised"] = None
    host: Annotated[str | None, "the machine that it ran on, in a run on several"] = None
    collectives: Annotated[dict[str, Collective], "by the name of the collective"] = field(default_factory=dict)


@dataclass(frozen=True)
class Collective:
    """How a rank used one collective."""

    count: Annotated[int, "how often this rank called it"]
    bytes: Annotated[int, "how much it gave to it in all"]


@dataclass(frozen=True)
class Traffic:
    """What the ranks sent each other."""

    gradient: Annotated[int, "bytes of all gradients, in the type in which they are sent"]
    ranks: Annotated[tuple[RankTraffic, ...], "one for each rank, in order"]


@dataclass(frozen=True)
class RankTraffic:
    """Bytes of one rank in an optimizer step, the mean over all windows. They count gradients and weights unless a
    field says otherwise. The formulas' numbers are null for a backend without a formula.
    """

    sent: Annotated[float, "in messages to other ranks"]
    received: Annotated[float, "in messages from other ranks, as these counted them"]
    reduced: Annotated[float, "handed to collectives, which is not what these send"]
    ring: Annotated[
        float, "what a rank sends, in the mean, of what was reduced, if it goes round a ring: 2 (N - 1) / N of it"
    ]
    other: Annotated[float, "sent or handed over besides: total weights, loss scales, losses for a log"]
    expected_sent: Annotated[float | None, "`sent` by the formula of the backend"] = None
    expected_received: Annotated[float | None, "`received` by the formula"] = None
    expected_reduced: Annotated[float | None, "`reduced` by the formula"] = None


@dataclass(frozen=True)
class Finding:
    """A law that was broken."""

    law: Annotated[str, "id of the law"]
    level: Annotated[Level, "level of the law"]
    says: Annotated[str, "the law in one sentence"]
    contradiction: Annotated[str, "what must be, why, and what was done instead"]
    fix: Annotated[str, "a short correct snippet of Python"]
    count: Annotated[int, "in how many windows of how many ranks the same line broke it"]
    ranks: Annotated[tuple[int, ...], "the ranks that broke it"]
    effect: Annotated[str | None, "what that does to the numbers, predicted from the trace"] = None
    observed: Annotated[str | None, "what the numbers did"] = None
    window: Annotated[int | None, "the first window; null before training"] = None
    where: Annotated[str | None, "the line"] = None
    slice: Annotated[tuple[Moment, ...], "the shortest piece of the trace that shows it"] = ()


@dataclass(frozen=True)
class Moment:
    """Something that a rank did."""

    rank: Annotated[int, "which rank"]
    time: Annotated[float, "milliseconds since the first moment of the same list, on one clock for all ranks"]
    event: Annotated[str, "kind of event"]
    label: Annotated[str, "the event in words"]
    where: Annotated[str | None, "the line of the trainer or its framework that did it: `train.py:41`"] = None
    micro_batch: Annotated[int | None, "the micro-batch of the window"] = None
    marked: Annotated[bool, "whether it is part of what broke a law"] = False


@dataclass(frozen=True)
class Timeline:
    """What all ranks did in one window."""

    moments: Annotated[tuple[Moment, ...], "rank by rank, in order"]
    window: Annotated[int | None, "the window shown; null: before training"] = None
    joins: Annotated[tuple[Join, ...], "collectives in which ranks met"] = ()
    cut: Annotated[int, "events left out at the end of the longest lane"] = 0


@dataclass(frozen=True)
class Join:
    """A collective in which ranks met."""

    moments: Annotated[tuple[int, ...], "positions in the timeline's `moments`, one for each rank that took part"]


@dataclass(frozen=True)
class Mutants:
    """The table mutant x check: how the harness judged trainers that are wrong on purpose."""

    rows: Annotated[tuple[Mutant, ...], "a row for each mutant"]


@dataclass(frozen=True)
class Mutant:
    """A trainer with one seeded bug."""

    mutant: Annotated[str, "name"]
    what: Annotated[str, "the seeded bug"]
    verdicts: Annotated[dict[str, Verdict], "the verdict by the id of the case"]
    caught: Annotated[bool | None, "whether a case failed; null if it cannot run on the machine"]
    by: Annotated[tuple[str, ...], "the checks of its numbers that caught it"] = ()
    laws: Annotated[tuple[str, ...], "the laws that it broke"] = ()


@dataclass(frozen=True)
class Footer:
    """The last line: it proves that nothing is missing."""

    finished: Annotated[str, "date and time, ISO 8601"]
    cases: Annotated[int, "how many lines of kind `case` there are"]
    verdicts: Annotated[dict[str, int], "how many cases have each verdict"]
    complete: Annotated[bool, "whether these are all that were planned"]


Line: TypeAlias = Header | CaseRecord | Mutants | Footer
KINDS: dict[str, type[Line]] = {"header": Header, "case": CaseRecord, "mutants": Mutants, "footer": Footer}
"""What the field `kind` of a line says."""
