"""The lines of a results file and their fields.

The format is defined only here: `plain.py` reads and writes these records, and `python -m tools.results_schema`
generates SCHEMA.md and schema.json from them.

A field with a default may be absent from the file. Vectors have one number for each parameter, in the order of
`CaseRecord.parameters`. Errors and bounds are absolute, in the unit of the quantity.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from typing import Annotated, Literal, TypeAlias, get_args

from conformance.workloads.behaviour import Way


def quoted(target: str) -> str:
    """A target as a shell argument; bytes that are not UTF-8 in the notation of bash, zsh and ksh."""
    if target.isprintable():
        return shlex.quote(target)
    # A results file may name a target that no file can have.
    names = ("surrogateescape" if "\udc80" <= char <= "\udcff" else "surrogatepass" for char in target)
    text = b"".join(char.encode("utf-8", name) for char, name in zip(target, names, strict=True))
    plain = (chr(byte) if 32 <= byte < 127 and byte not in b"'\\" else f"\\x{byte:02x}" for byte in text)
    return f"$'{''.join(plain)}'"


SCHEMA_VERSION = 6

#: Joins the names of two bugs at once.
PAIR = " + "
#: Joins the name of a bug and the kind of windows that have it, if others are correct.
ONLY = " only "

Vector: TypeAlias = tuple[float | None, ...]
Level: TypeAlias = Literal["MUST", "SHOULD"]
Quantity: TypeAlias = Literal["weights", "gradient"]
Verdict: TypeAlias = Literal[
    "UNSUPPORTED", "UNAVAILABLE", "NOT RUN", "PASS (exact)", "PASS (bounded)",
    "INCONCLUSIVE", "SETUP", "FAIL (numerics)", "FAIL (law)", "DIVERGED", "HANG", "CRASH",
]  # fmt: skip
Mistake: TypeAlias = Literal["stop", "rows", "start", "learning rate", "optimizer", "clip", "loss", "report", "task"]

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
        "versions, platform, processors and the like by name; null if one is missing",
    ] = field(default_factory=dict)
    sources: Annotated[
        dict[str, dict[str, str]], "by trainer: the SHA-256 of its file and of each of the user's files that it imports"
    ] = field(default_factory=dict)
    notes: Annotated[
        tuple[str, ...],
        "what to know first about the whole run: which trainers could not be forked, why, and what to do",
    ] = ()
    laws: Annotated[tuple[LawText, ...], "the laws that every case was checked against"] = ()
    bugs: Annotated[dict[str, str], 'the known bugs by name; each text completes "it is a trainer that ..."'] = field(
        default_factory=dict
    )


@dataclass(frozen=True)
class LawText:
    """One of the laws that every case was checked against."""

    law: Annotated[str, "id, chapter and name: `amp/unscale-before-clip`"]
    level: Annotated[Level, "breaking a MUST fails the case; breaking a SHOULD is a warning"]
    says: Annotated[str, "the law in one sentence"]


@dataclass(frozen=True)
class CaseRecord:
    """One case: workload x layout x precision x backend on one trainer, its verdict, and the evidence for it."""

    id: Annotated[str, "readable id, unique within its trainer"]
    trainer: Annotated[str, "name of the trainer"]
    target: Annotated[str, "where the trainer was found: module or file, and function"]
    command: Annotated[str, "the command that runs this case again"]
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
    reason: Annotated[Reason | None, "details of the headline that no other field has"] = None
    resumed_at: Annotated[
        int | None,
        "after how many windows training stopped, to resume in new processes; null if it ran through",
    ] = None
    resumed: Annotated[
        str,
        "`once`, `twice` from one checkpoint, after its processes were `killed` while they saved the next one, or on "
        "another number of ranks, such as `on-3-ranks`",
    ] = "once"
    own_scale: Annotated[
        bool, "whether the numbers are so small that the trainer may start from its own loss scale"
    ] = False
    possible: Annotated[int, "how many cases this backend has on the CPU for a trainer that supports everything"] = 0
    declared: Annotated[int, "how many of these the trainer supports"] = 0
    undeclared: Annotated[str | None, "the feature that the trainer must declare, for the verdict UNSUPPORTED"] = None
    micro_batch_size: Annotated[int | None, "samples in a micro-batch"] = None
    seconds: Annotated[float | None, "how long the case took"] = None
    notes: Annotated[tuple[str, ...], "more about the case, one line each"] = ()
    certificate: Annotated[Certificate | None, "whether the case is exact"] = None
    power: Annotated[Power | None, "how clearly the case separates a correct trainer from a wrong one"] = None
    guards: Annotated[tuple[Guard, ...], "conditions without which equality means nothing"] = ()
    parameters: Annotated[tuple[str, ...], "names of the entries of each vector"] = ()
    steps: Annotated[tuple[Step, ...], "the trajectory"] = ()
    skips: Annotated[tuple[int, ...], "windows whose step was skipped"] = ()
    scales: Annotated[tuple[float, ...], "loss scale of each window"] = ()
    diverged: Annotated[Diverged | None, "where the weights of the ranks first differed"] = None
    first_difference: Annotated[FirstDifference | None, "where the trainer first differed from the correct answer"] = (
        None
    )
    read_at: Annotated[Lines | None, "the line that first read the checkpoint, in a resumed case"] = None
    saved_at: Annotated[Lines | None, "the line that last wrote to the checkpoint, in a resumed case"] = None
    calls: Annotated[
        dict[str, Lines],
        "in a case that did not pass: the line of each kind of event, the last in the window to show, else in the run",
    ] = field(default_factory=dict)
    mistake: Annotated[Mistake | None, "what the adapter got wrong, for the verdict SETUP"] = None
    explained_by: Annotated[
        tuple[str, ...],
        "known bugs, by their names in the header, that give exactly these wrong numbers; if no single one does, pairs "
        "of bugs, joined by ` + `, or bugs in some windows, such as `not-clipped only in short windows`",
    ] = ()
    ruled_out: Annotated[tuple[str, ...], "known bugs that would show in this case, but give other numbers"] = ()
    places: Annotated[tuple[str, ...], "the kinds of windows that only some of its windows are"] = ()
    gradient_factors: Annotated[
        tuple[float, ...],
        "multiplying all gradients by one of these gives exactly these wrong numbers; several prove nothing",
    ] = ()
    step_factors: Annotated[tuple[float, ...], "the same for the learning rate"] = ()
    behaviour: Annotated[tuple[Behaviour, ...], "its choices where several behaviours are valid"] = ()
    ranks: Annotated[tuple[Rank, ...], "how each process ended"] = ()
    traffic: Annotated[Traffic | None, "what the ranks sent each other"] = None
    laws: Annotated[
        dict[str, int], "how often each law was checked, over windows and ranks; without laws that were not checked"
    ] = field(default_factory=dict)
    unchecked: Annotated[
        dict[str, str],
        "laws whose check raised an error, so they are undecided: the traceback of each",
    ] = field(default_factory=dict)
    unjudged: Annotated[
        str | None, "the traceback of an error of the harness itself, which left the case undecided"
    ] = None
    findings: Annotated[tuple[Finding, ...], "the laws that were broken"] = ()
    timeline: Annotated[Timeline | None, "what the ranks did, unless the case passed without remarks"] = None

    @property
    def failed(self) -> bool:
        """Whether the case counts as not conforming."""
        return self.verdict in NOT_CONFORMING

    @property
    def is_followed(self) -> bool:
        """Whether the lines that write weights are known."""
        return "weights" in self.calls

    @property
    def repro_command(self) -> str:
        """The command that writes a standalone script that shows why the case fails."""
        return f"conformance repro {self.id} {quoted(self.target)}"


@dataclass(frozen=True)
class Reason:
    """Details of a failing case's headline, as data."""

    code: Annotated[str, "the same in all cases that fail for this reason, such as the type of an exception"] = ""
    where: Annotated[str | None, "the lines that it refers to: `train.py:41`, as in a finding"] = None
    source: Annotated[tuple[str, ...], "the text of each line in `where`, as in a finding"] = ()
    advice: Annotated[str | None, "what to do"] = None
    edit: Annotated[str, "where code changes, as data"] = ""


@dataclass(frozen=True)
class Certificate:
    """Whether every intermediate value is exactly representable."""

    exact: Annotated[bool, "true: no value is rounded, in any order of summation"]
    stages: Annotated[tuple[Stage, ...], "the stages of the arithmetic of a step"] = ()
    reason: Annotated[str | None, "why the case is not exact"] = None


@dataclass(frozen=True)
class Stage:
    """One stage in the arithmetic of a step."""

    stage: Annotated[str, "name"]
    exact: Annotated[bool, "true: this stage rounds nothing"]
    bits: Annotated[int | None, "bits of significand required"] = None
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
    """A condition without which equality means nothing."""

    name: Annotated[str, "the condition"]
    holds: Annotated[bool, "whether it is met"]
    expected: Annotated[str, "the correct state"]
    observed: Annotated[str, "the observed state"]
    diagnosis: Annotated[
        str, "the bug that violates it, if the name leaves that open; the same for all guards that one bug violates"
    ] = ""


@dataclass(frozen=True)
class Step:
    """State after one optimizer step, and the gradients that the optimizer used in it."""

    step: Annotated[int, "which optimizer step"]
    window: Annotated[int, "which window"]
    expected: Annotated[Vector, "weights after the step, by the oracle"]
    observed: Annotated[Vector, "weights after the step, by the trainer"]
    error: Annotated[Vector | None, "|observed - expected|"] = None
    bound: Annotated[Vector | None, "largest allowed error; null or 0 in an exact case"] = None
    ulp: Annotated[Vector | None, "the error in units in the last place of the weights' type"] = None
    gradient_expected: Annotated[Vector | None, "gradients as the optimizer should see them"] = None
    gradient_observed: Annotated[Vector | None, "gradients as the optimizer saw them"] = None
    gradient_error: Annotated[Vector | None, "|observed - expected|"] = None
    gradient_bound: Annotated[Vector | None, "largest allowed error of the gradients"] = None


@dataclass(frozen=True)
class Diverged:
    """The first step after which the ranks have different weights."""

    step: Annotated[int, "which optimizer step"]
    weights: Annotated[tuple[Vector, ...], "weights after it, a vector for each rank"]


@dataclass(frozen=True)
class FirstDifference:
    """Where the trainer first differed from the correct answer."""

    step: Annotated[int, "which optimizer step"]
    quantity: Annotated[Quantity, "what differs"]
    parameter: Annotated[str, "one of the case's `parameters`"]
    expected: Annotated[float | None, "by the oracle"]
    observed: Annotated[float | None, "by the trainer"]
    error: Annotated[float | None, "|observed - expected|"] = None
    bound: Annotated[float | None, "largest allowed error"] = None
    where: Annotated[
        str | None, "the line that took this step, or the last backward before it: `train.py:41`, as in a finding"
    ] = None
    source: Annotated[tuple[str, ...], "the text of each line in `where`, as in a finding"] = ()


@dataclass(frozen=True)
class Behaviour:
    """What the trainer does where several behaviours are valid, such as with a short last window."""

    way: Annotated[Way, "the choice, and the behaviour"]
    declared: Annotated[str | None, "the behaviour that the trainer declares for this choice"] = None


@dataclass(frozen=True)
class Rank:
    """How one process ended. `output`, `stack` and `traceback` come from the trainer and are not to be trusted."""

    rank: Annotated[int, "which rank"]
    exit: Annotated[str, "how the process ended, in words"]
    output: Annotated[str, "the end of its output"] = ""
    delivered: Annotated[bool, "whether it failed after it had delivered its whole recording"] = False
    stack: Annotated[str | None, "where it was at the time limit"] = None
    traceback: Annotated[str | None, "the traceback of its exception"] = None
    host: Annotated[str | None, "its machine, if there were several"] = None
    collectives: Annotated[dict[str, Collective], "its use of each collective, by name"] = field(default_factory=dict)


@dataclass(frozen=True)
class Collective:
    """A rank's use of one collective."""

    count: Annotated[int, "number of calls"]
    bytes: Annotated[int, "total bytes contributed"]


@dataclass(frozen=True)
class Traffic:
    """What the ranks sent each other."""

    gradient: Annotated[int, "bytes of all gradients, in the type that is sent"]
    ranks: Annotated[tuple[RankTraffic, ...], "one for each rank, in order"]
    state: Annotated[
        int | None, "bytes of the optimizer's state for all parameters; null if nothing is sharded over the ranks"
    ] = None


@dataclass(frozen=True)
class RankTraffic:
    """Bytes of one rank per optimizer step, averaged over all windows. They count gradients and weights, except
    `other`. Expected values are null for a backend without a formula.
    """

    sent: Annotated[float, "in messages to other ranks"]
    received: Annotated[float, "in messages from other ranks, as counted by the senders"]
    reduced: Annotated[float, "passed to collectives, which send another amount"]
    ring: Annotated[float, "sent by a ring all-reduce of `reduced`, averaged over ranks: 2 (N - 1) / N of it"]
    other: Annotated[float, "anything else, such as total weights, loss scales, logged losses"]
    expected_sent: Annotated[float | None, "`sent` by the formula of the backend"] = None
    expected_received: Annotated[float | None, "`received` by the formula"] = None
    expected_reduced: Annotated[float | None, "`reduced` by the formula"] = None
    state: Annotated[int | None, "bytes of the optimizer's state that this rank keeps"] = None


@dataclass(frozen=True)
class Finding:
    """A law that was broken."""

    law: Annotated[str, "id of the law"]
    level: Annotated[Level, "level of the law"]
    says: Annotated[str, "the law in one sentence"]
    expected: Annotated[str, "what the law requires here"]
    observed: Annotated[str, "what the trainer did instead"]
    why: Annotated[str, "why it matters, with the numbers of the run"]
    fix: Annotated[str, "a short correct snippet of Python"]
    count: Annotated[int, "how often the same line broke it, over windows and ranks"]
    ranks: Annotated[tuple[int, ...], "the ranks that broke it"]
    effect: Annotated[str | None, "its effect on the numbers, as the trace predicts"] = None
    numbers: Annotated[str | None, "the observed effect on the numbers"] = None
    window: Annotated[int | None, "the first window in which it was broken; null before training"] = None
    where: Annotated[str | None, "the line that broke it: `train.py:41`"] = None
    source: Annotated[
        tuple[str, ...],
        "the text of each line in `where`, as it was when the case ran; empty if it was not found",
    ] = ()
    slice: Annotated[tuple[Moment, ...], "the events that show it"] = ()
    fault: Annotated[str, "what the trainer does, to follow `the trainer`, if more is known than the law says"] = ""
    advice: Annotated[str, "what to do, if more is known than the law says"] = ""
    origin: Annotated[Lines | None, "the line where it starts, if `where` only shows it"] = None
    edit: Annotated[str, "where code changes, as data of the report, if more is known than the law says"] = ""


@dataclass(frozen=True)
class Lines:
    """A line, and in a framework the trainer's line that called it."""

    where: Annotated[str, "as in a finding"]
    source: Annotated[tuple[str, ...], "as in a finding"] = ()


@dataclass(frozen=True)
class Moment:
    """One action of a rank."""

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
    cut: Annotated[int, "how many events are omitted at the end, for the rank with the most"] = 0


@dataclass(frozen=True)
class Join:
    """A collective in which ranks met."""

    moments: Annotated[tuple[int, ...], "indices into the timeline's `moments`, one for each rank that took part"]


@dataclass(frozen=True)
class Mutants:
    """Verdicts on trainers with seeded bugs."""

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
"""The record type of each `kind` of line."""
