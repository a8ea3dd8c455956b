"""What the report shows of one case besides its fields: excerpts and summaries of its evidence."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from conformance.results.records import PASSED, CaseRecord, Certificate, Rank, Stage

from .figure import complete_plot, values
from .text import distinct, duration, number, plural

MOST_OUTPUT = 4000


@dataclass(frozen=True)
class RankGroup:
    """Neighbouring ranks that ended in the same way. `output` is the end of theirs, `cut` how many characters are left
    out before it.
    """

    ranks: str
    rank: Rank
    output: str
    cut: int


@dataclass(frozen=True)
class Row:
    """The parameter that differed first, at one step, as text."""

    step: int
    expected: str
    observed: str
    error: str
    first: bool


def setting(case: CaseRecord) -> list[tuple[str, str]]:
    """What was run, as names and values, without those that the case does not have."""
    pairs = (
        ("workload", case.workload), ("backend", case.backend), ("layout", case.layout),
        ("world size", case.world_size), ("accumulation", case.accumulation),
        ("micro-batch", case.micro_batch_size), ("precision", case.precision), ("device", case.device),
        ("resumed at window", case.resumed_at), ("resumed", None if case.resumed == "once" else case.resumed),
        ("loss scale", "the trainer's own" if case.own_scale else None),
        ("took", None if case.seconds is None else duration(case.seconds)),
    )  # fmt: skip
    return [(name, str(value)) for name, value in pairs if value not in (None, "")]


def tightest(certificate: Certificate) -> Stage | None:
    """The stage with the fewest bits to spare."""
    counted = [stage for stage in certificate.stages if stage.bits is not None and stage.available is not None]
    return min(counted, key=lambda stage: (stage.available or 0) - (stage.bits or 0), default=None)


def margin(case: CaseRecord) -> Iterator[str]:
    """How much room there was in a case that holds, and what else is to be known of it."""
    if case.verdict == "PASS (bounded)":
        yield error_in_words(case) or ""
        if case.power is not None:
            yield f"nearest known bug: {number(case.power.value, 3)} times the bound"
    elif case.certificate is not None and (tight := tightest(case.certificate)) is not None:
        yield f"{tight.stage} {tight.bits} of {tight.available} bits"
    if case.skips:
        yield f"{plural(len(case.skips), 'step')} skipped"
    yield from case.notes


def commands(cases: Iterable[CaseRecord]) -> list[str]:
    """What runs one of the cases again, with ID for its id."""
    return [*dict.fromkeys(case.command.replace(case.id, "ID") for case in cases)]


def guards_that_held(cases: Sequence[CaseRecord]) -> list[str]:
    """The guards of the cases that conform, each with how many of them it held in unless it is all."""
    held = [case for case in cases if case.verdict in PASSED]
    counts = Counter(guard.name for case in held for guard in case.guards if guard.holds)
    return [name if count == len(held) else f"{name} (in {count})" for name, count in counts.most_common()]


def ranks(case: CaseRecord) -> list[RankGroup]:
    """The ranks in order; neighbours that ended in the same way are one group."""
    found = []
    for _, run in groupby(case.ranks, key=lambda r: (r.exit, r.host, r.output, r.stack, r.traceback, r.collectives)):
        group = list(run)
        first, last = group[0].rank, group[-1].rank
        name = str(first) if len(group) == 1 else f"{first}–{last}"
        output = group[0].output
        found.append(RankGroup(name, group[0], output[-MOST_OUTPUT:], max(0, len(output) - MOST_OUTPUT)))
    return found


def error_in_words(case: CaseRecord) -> str | None:
    """The largest error over all steps and parameters, also as a share of the bound; None without numbers."""
    weights = complete_plot(case, "weights")
    if weights is None:
        return None
    largest = max(series.largest for series in weights.series)
    if math.isinf(largest):
        return "some values are not finite, or are missing"
    over = f"over {plural(len(case.steps), 'step')}, {plural(weights.parameters, 'parameter')}"
    error = f"largest error {number(largest, 3)} {weights.unit}".rstrip()
    shares = [
        abs(point.error) / point.bound
        for series in weights.series
        for point in series.points
        if point.error is not None and point.bound
    ]
    share = f", at most {number(max(shares), 2)} of the bound" if shares else ""
    return f"{error}{share} {over}"


def around_first_difference(case: CaseRecord) -> list[Row]:
    """The parameter that differed first, from the step before to two steps after."""
    first = case.first_difference
    if first is None or first.parameter not in case.parameters:
        return []
    i = case.parameters.index(first.parameter)
    rows = []
    for step in case.steps:
        if not first.step - 1 <= step.step <= first.step + 2:
            continue
        expected, observed, *_ = values(step, first.quantity, i)
        error = "" if expected is None or observed is None else number(observed - expected, 3)
        rows.append(Row(step.step, *distinct(expected, observed), error, step.step == first.step))
    return rows
