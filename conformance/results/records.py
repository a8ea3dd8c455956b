"""The lines of a results file, and what is in them.

The format is described here alone: `plain.py` reads and writes what is declared here, and
`python -m tools.results_schema` writes SCHEMA.md and schema.json from it.

A field with a default may be absent from the file. Vectors have one number for each parameter, in the order of
`CaseRecord.parameters`. Errors and bounds are absolute, in the unit of the quantity.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from typing import Annotated, Literal, TypeAlias, get_args

from conformance.workloads.behaviour import Way


def quoted(target: str) -> str:
    """A target as a shell takes it; bytes that are no UTF-8 as bash, zsh and ksh write them."""
    if target.isprintable():
        return shlex.quote(target)
    # A results file may name a target that no file can have.
    names = ("surrogateescape" if "\udc80" <= char <= "\udcff" else "surrogatepass" for char in target)
    text = b"".join(char.encode("utf-8", name) for char, name in zip(target, names, strict=True))
    plain = (chr(byte) if 32 <= byte < 127 and byte not in b"'\\" else f"\\x{byte:02x}" for byte in text)
    return f"$'{''.join(plain)}'"


SCHEMA_VERSION = 5

#: Joins the names of two bugs at once.
PAIR = " + "

Vector: TypeAlias = tuple[float | None, ...]
Level: TypeAlias = Literal["MUST", "SHOULD"]
Quantity: TypeAlias = Literal["weights", "gradient"]
Verdict: TypeAlias = Literal[
    "UNSUPPORTED", "UNAVAILABLE", "NOT RUN", "PASS (exact)", "PASS (bounded)",
    "INCONCLUSIVE", "SETUP", "FAIL (numerics)", "FAIL (law)", "DIVERGED", "HANG", "CRASH",
]  # fmt: skip
Mistake: TypeAlias = Literal["stop", "rows", "start", "learning rate", "optimizer", "clip", "loss", "report"]

PASSED: tuple[Verdict, ...] = ("PASS (exact)", "PASS (bounded)")
NOT_RUN: tuple[Verdict, ...] = ("UNSUPPORTED", "UNAVAILABLE", "NOT RUN")
NOT_CONFORMING: tuple[Verdict, ...] = tuple(name for name in get_args(Verdict) if name not in PASSED + NOT_RUN)


@dataclass(frozen=True)
class Header:
    """The first line: what ran, where, and how many cases were planned."""

    tool: Annotated[str, "`trainer-conformance`"]
    version: Annotated[str, "version of the tool"]
    started: Annotated[str, "date and time, ISO 8601"]
    command: Annotated[str, "the command that was run"]
    planned: Annotated[int, "how many cases were planned"]
    seed: Annotated[int | None, "seed of everything random"] = None
    machine: Annotated[
        dict[str, str | int | float | bool | None],
        "versions, platform, processors and the like by name; null where something is missing",
    ] = field(default_factory=dict)
    sources: Annotated[
        dict[str, dict[str, str]], "by trainer: the SHA-256 of its file and of each of the user's files that it imports"
    ] = field(default_factory=dict)
    notes: Annotated[
        tuple[str, ...],
        "what to know about the whole run first: which trainers could not be forked, why, and what to do",
    ] = ()
    laws: Annotated[tuple[LawText, ...], "the laws that every case was held to"] = ()
    bugs: Annotated[dict[str, str], 'the known bugs by name; each text completes "it is a trainer that ..."'] = field(
        default_factory=dict
    )


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
    verdict: Annotated[Verdict, "one of the twelve verdicts"]
    headline: Annotated[str, "the verdict's reason in one line; for a case that did not run, why, and what to do"]
    reason: Annotated[Reason | None, "what the headline says, as far as no other field does"] = None
    resumed_at: Annotated[
        int | None,
        "after how many windows training was stopped, to be resumed in fresh processes; null if it ran through",
    ] = None
    resumed: Annotated[
        str,
        "`once`, `twice` from one checkpoint, after its processes were `killed` while they saved the next one, or on "
        "another number of ranks, such as `on-3-ranks`",
    ] = "once"
    own_scale: Annotated[
        bool, "whether the numbers are so small that the trainer may begin with its own loss scale"
    ] = False
    possible: Annotated[int, "how many cases a trainer that declares everything has on this backend, on the CPU"] = 0
    declared: Annotated[int, "how many of these the trainer declares"] = 0
    undeclared: Annotated[str | None, "what the trainer must declare for it, for the verdict UNSUPPORTED"] = None
    micro_batch_size: Annotated[int | None, "samples in a micro-batch"] = None
    seconds: Annotated[float | None, "how long the case took"] = None
    notes: Annotated[tuple[str, ...], "more about the case, one line each"] = ()
    certificate: Annotated[Certificate | None, "whether the case is exact"] = None
    power: Annotated[Power | None, "how surely the case tells a right trainer from a wrong one"] = None
    guards: Annotated[tuple[Guard, ...], "what must hold before equality means anything"] = ()
    parameters: Annotated[tuple[str, ...], "names of the entries of each vector"] = ()
    steps: Annotated[tuple[Step, ...], "the trajectory"] = ()
    skips: Annotated[tuple[int, ...], "windows whose step was skipped"] = ()
    scales: Annotated[tuple[float, ...], "loss scale of each window"] = ()
    diverged: Annotated[Diverged | None, "where the weights of the ranks first differed"] = None
    first_difference: Annotated[FirstDifference | None, "where the trainer first differed from the right answer"] = None
    mistake: Annotated[Mistake | None, "what the adapter got wrong, for the verdict SETUP"] = None
    explained_by: Annotated[
        tuple[str, ...],
        "known bugs, by their names in the header, that make exactly these wrong numbers; if none does, two at once, "
        "joined by ` + `",
    ] = ()
    ruled_out: Annotated[tuple[str, ...], "known bugs that would show in this case, and make other numbers"] = ()
    gradient_factors: Annotated[
        tuple[float, ...],
        "all gradients multiplied by one of these makes exactly these wrong numbers; several tell nothing",
    ] = ()
    step_factors: Annotated[tuple[float, ...], "the same of the learning rate"] = ()
    behaviour: Annotated[tuple[Behaviour, ...], "what it does where several ways are right"] = ()
    ranks: Annotated[tuple[Rank, ...], "how each process ended"] = ()
    traffic: Annotated[Traffic | None, "what the ranks sent each other"] = None
    laws: Annotated[
        dict[str, int], "how often each law was checked, counted over windows and ranks; without laws that were not"
    ] = field(default_factory=dict)
    unchecked: Annotated[
        dict[str, str],
        "laws that raised an error of their own, so that nothing is known of them: the traceback of each",
    ] = field(default_factory=dict)
    unjudged: Annotated[
        str | None, "the traceback of an error of the harness's own, because of which nothing is known of the case"
    ] = None
    findings: Annotated[tuple[Finding, ...], "the laws that were broken"] = ()
    timeline: Annotated[Timeline | None, "what the ranks did, for a case that did not simply pass"] = None

    @property
    def failed(self) -> bool:
        """Whether the case counts as not conforming."""
        return self.verdict in NOT_CONFORMING

    @property
    def repro_command(self) -> str:
        """Writes a standalone script that shows why the case fails."""
        return f"conformance repro {self.id} {quoted(self.target)}"


@dataclass(frozen=True)
class Reason:
    """What the headline of a case that fails says, as data."""

    code: Annotated[str, "the same in all cases that fail for this reason, such as the type of what was raised"] = ""
    where: Annotated[str | None, "the lines that it is about: `train.py:41`, as in a finding"] = None
    source: Annotated[tuple[str, ...], "the text of each line that `where` names, as in a finding"] = ()


@dataclass(frozen=True)
class Certificate:
    """Whether every intermediate value is exactly representable."""

    exact: Annotated[bool, "true: no value is rounded, in any order of summation"]
    stages: Annotated[tuple[Stage, ...], "the stages of the arithmetic of a step"] = ()
    reason: Annotated[str | None, "why the case is not exact"] = None


@dataclass(frozen=True)
class Stage:
    """One stage of the arithmetic of a step."""

    stage: Annotated[str, "name"]
    exact: Annotated[bool, "true: this stage rounds nothing"]
    bits: Annotated[int | None, "bits of significand that it needs"] = None
    available: Annotated[int | None, "bits that the precision has"] = None
    step: Annotated[int | None, "the step that needs the most bits"] = None


@dataclass(frozen=True)
class Power:
    """How far the nearest known bug is from what this case accepts."""

    value: Annotated[float, 'effect of the nearest bug, divided by the tolerance; `"inf"` if the tolerance is zero']
    fault: Annotated[str | None, "name of the nearest bug"] = None
    text: Annotated[str | None, "what a trainer with that bug does"] = None


@dataclass(frozen=True)
class Guard:
    """A condition that must hold before equality means anything."""

    name: Annotated[str, "what must hold"]
    holds: Annotated[bool, "whether it does"]
    expected: Annotated[str, "what is right"]
    observed: Annotated[str, "what was seen"]
    diagnosis: Annotated[
        str, "which mistake breaks it, where the name leaves that open; the same for all guards that one mistake breaks"
    ] = ""


@dataclass(frozen=True)
class Step:
    """State after one optimizer step, and the gradients that the optimizer saw in it."""

    step: Annotated[int, "which optimizer step"]
    window: Annotated[int, "which window"]
    expected: Annotated[Vector, "weights after the step, by the oracle"]
    observed: Annotated[Vector, "weights after the step, by the trainer"]
    error: Annotated[Vector | None, "|observed - expected|"] = None
    bound: Annotated[Vector | None, "how large the error may be; null or 0 in an exact case"] = None
    ulp: Annotated[Vector | None, "the error in units in the last place of the weights' type"] = None
    gradient_expected: Annotated[Vector | None, "gradients as the optimizer should see them"] = None
    gradient_observed: Annotated[Vector | None, "gradients as the optimizer saw them"] = None
    gradient_error: Annotated[Vector | None, "|observed - expected|"] = None
    gradient_bound: Annotated[Vector | None, "how large their error may be"] = None


@dataclass(frozen=True)
class Diverged:
    """The first step after which the ranks have different weights."""

    step: Annotated[int, "which optimizer step"]
    weights: Annotated[tuple[Vector, ...], "weights after it, a vector for each rank"]


@dataclass(frozen=True)
class FirstDifference:
    """Where the trainer first differed from the right answer."""

    step: Annotated[int, "which optimizer step"]
    quantity: Annotated[Quantity, "what differs"]
    parameter: Annotated[str, "one of the case's `parameters`"]
    expected: Annotated[float | None, "by the oracle"]
    observed: Annotated[float | None, "by the trainer"]
    error: Annotated[float | None, "|observed - expected|"] = None
    bound: Annotated[float | None, "how large the error may be"] = None
    where: Annotated[
        str | None, "the line that took this step, or the last backward before it: `train.py:41`, as in a finding"
    ] = None
    source: Annotated[tuple[str, ...], "the text of each line that `where` names, as in a finding"] = ()


@dataclass(frozen=True)
class Behaviour:
    """What the trainer does where several ways are right, such as with a short last window."""

    way: Annotated[Way, "the choice, and what it does"]
    declared: Annotated[str | None, "what the trainer declares of this choice"] = None


@dataclass(frozen=True)
class Rank:
    """How one process ended. `output`, `stack` and `traceback` come from the trainer and are not to be trusted."""

    rank: Annotated[int, "which rank"]
    exit: Annotated[str, "how the process ended, in words"]
    output: Annotated[str, "the end of what it printed"] = ""
    delivered: Annotated[bool, "whether it failed after it had delivered all that it recorded"] = False
    stack: Annotated[str | None, "where it was at the time limit"] = None
    traceback: Annotated[str | None, "what it raised"] = None
    host: Annotated[str | None, "the machine that it ran on, if there were several"] = None
    collectives: Annotated[dict[str, Collective], "how it used each collective, by name"] = field(default_factory=dict)


@dataclass(frozen=True)
class Collective:
    """How a rank used one collective."""

    count: Annotated[int, "how often this rank called it"]
    bytes: Annotated[int, "how much it contributed in all"]


@dataclass(frozen=True)
class Traffic:
    """What the ranks sent each other."""

    gradient: Annotated[int, "bytes of all gradients, in the type that is sent"]
    ranks: Annotated[tuple[RankTraffic, ...], "one for each rank, in order"]
    state: Annotated[
        int | None, "bytes of the optimizer's state for all parameters; null where nothing is split over the ranks"
    ] = None


@dataclass(frozen=True)
class RankTraffic:
    """Bytes of one rank in an optimizer step, the mean over all windows. They count gradients and weights, except
    `other`. What a formula gives is null for a backend that has none.
    """

    sent: Annotated[float, "in messages to other ranks"]
    received: Annotated[float, "in messages from other ranks, by the senders' count"]
    reduced: Annotated[float, "passed to collectives, which is not what these then send"]
    ring: Annotated[float, "what a ring all-reduce of `reduced` sends, the mean over ranks: 2 (N - 1) / N of it"]
    other: Annotated[float, "anything else, such as total weights, loss scales, losses for a log"]
    expected_sent: Annotated[float | None, "`sent` by the formula of the backend"] = None
    expected_received: Annotated[float | None, "`received` by the formula"] = None
    expected_reduced: Annotated[float | None, "`reduced` by the formula"] = None
    state: Annotated[int | None, "bytes of the optimizer's state that it keeps itself"] = None


@dataclass(frozen=True)
class Finding:
    """A law that was broken."""

    law: Annotated[str, "id of the law"]
    level: Annotated[Level, "level of the law"]
    says: Annotated[str, "the law in one sentence"]
    contradiction: Annotated[str, "what must hold, why, and what the trainer did instead"]
    fix: Annotated[str, "a short correct snippet of Python"]
    count: Annotated[int, "how often the same line broke it, counted over windows and ranks"]
    ranks: Annotated[tuple[int, ...], "the ranks that broke it"]
    effect: Annotated[str | None, "what that does to the numbers, as the trace predicts"] = None
    observed: Annotated[str | None, "what the numbers did"] = None
    window: Annotated[int | None, "the first window in which it was broken; null before training"] = None
    where: Annotated[str | None, "the line that broke it: `train.py:41`"] = None
    source: Annotated[
        tuple[str, ...],
        "the text of each line that `where` names, as it was when the case ran; empty where it was not found",
    ] = ()
    slice: Annotated[tuple[Moment, ...], "the events that show it"] = ()


@dataclass(frozen=True)
class Moment:
    """Something that a rank did."""

    rank: Annotated[int, "which rank"]
    time: Annotated[float, "milliseconds since the first moment of the list, on one clock for all ranks"]
    event: Annotated[str, "kind of event"]
    label: Annotated[str, "the event in words"]
    where: Annotated[str | None, "the line of the trainer or its framework that did it: `train.py:41`"] = None
    micro_batch: Annotated[int | None, "micro-batch in its window"] = None
    marked: Annotated[bool, "whether it shows a broken law"] = False


@dataclass(frozen=True)
class Timeline:
    """What all ranks did in one window."""

    moments: Annotated[tuple[Moment, ...], "rank by rank, in order"]
    window: Annotated[int | None, "which window; null before training"] = None
    joins: Annotated[tuple[Join, ...], "collectives in which ranks met"] = ()
    cut: Annotated[int, "how many events are left out at the end, for the rank with the most"] = 0


@dataclass(frozen=True)
class Join:
    """A collective in which ranks met."""

    moments: Annotated[tuple[int, ...], "indices into the timeline's `moments`, one for each rank that took part"]


@dataclass(frozen=True)
class Mutants:
    """How the harness judged trainers that are wrong on purpose."""

    rows: Annotated[tuple[Mutant, ...], "a row for each mutant"]


@dataclass(frozen=True)
class Mutant:
    """A trainer with one seeded bug."""

    mutant: Annotated[str, "name"]
    what: Annotated[str, "the seeded bug"]
    verdicts: Annotated[dict[str, Verdict], "the verdict on each case, by its id"]
    caught: Annotated[bool | None, "whether a case failed; null if it cannot run on the machine"]
    by: Annotated[tuple[str, ...], "the checks of numbers that caught it"] = ()
    laws: Annotated[tuple[str, ...], "the laws that it broke"] = ()


@dataclass(frozen=True)
class Footer:
    """The last line. Without it, the run was cut off."""

    finished: Annotated[str, "date and time, ISO 8601"]
    cases: Annotated[int, "how many cases are in the file"]
    verdicts: Annotated[dict[str, int], "how many cases have each verdict"]
    complete: Annotated[bool, "whether these are all planned cases"]


Line: TypeAlias = Header | CaseRecord | Mutants | Footer
KINDS: dict[str, type[Line]] = {"header": Header, "case": CaseRecord, "mutants": Mutants, "footer": Footer}
"""What the field `kind` of a line says."""
