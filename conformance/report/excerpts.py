"""Excerpts and summaries of the evidence of one case."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from conformance.results.result_lines import PASSED, CaseRecord, Certificate, Rank, Stage

from .figure import complete_plot, values
from .text import distinct, duration, number, plural

MOST_OUTPUT = 4000


def setting(case: CaseRecord) -> list[tuple[str, str]]:
    """The setting of a case as names and values."""
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
    """The margin of a case that passed, and its notes."""
    if case.verdict == "PASS (bounded)":
        yield error_in_words(case) or ""
        if case.power is not None:
            yield f"nearest known bug: {number(case.power.value, 3)}x the bound"
    elif case.certificate is not None and (tight := tightest(case.certificate)) is not None:
        yield f"{tight.stage} {tight.bits} of {tight.available} bits"
    if case.skips:
        yield f"{plural(len(case.skips), 'step')} skipped"
    yield from case.notes


def commands(cases: Iterable[CaseRecord]) -> list[str]:
    """The commands that run the cases again, with ID for the id."""
    return [*dict.fromkeys(case.command.replace(case.id, "ID") for case in cases)]


def guards_passed(cases: Sequence[CaseRecord]) -> list[str]:
    """The guards of the cases that passed, each with the number of cases unless it is all."""
    passed = [case for case in cases if case.verdict in PASSED]
    counts = Counter(guard.name for case in passed for guard in case.guards if guard.holds)
    return [name if count == len(passed) else f"{name} (in {count})" for name, count in counts.most_common()]


def ranks(case: CaseRecord) -> Iterator[tuple[str, Rank]]:
    """The ranks in order, each with its number; neighbours that ended alike are one entry."""
    for _, run in groupby(case.ranks, key=lambda r: (r.exit, r.host, r.output, r.stack, r.traceback, r.collectives)):
        first, *others = run
        yield f"{first.rank}–{others[-1].rank}" if others else str(first.rank), first


def error_in_words(case: CaseRecord) -> str | None:
    """The largest error of the weights, also as a share of the bound; None without numbers."""
    weights = complete_plot(case, "weights")
    if weights is None:
        return None
    largest = max(series.largest for series in weights.series)
    if math.isinf(largest):
        return "some values are missing or not finite"
    over = f"over {plural(len(case.steps), 'step')}, {plural(weights.parameters, 'parameter')}"
    error = f"largest error {number(largest, 3)}"
    points = (point for series in weights.series for point in series.points)
    shares = [abs(point.error) / point.bound for point in points if point.error is not None and point.bound]
    share = f", at most {number(max(shares), 2)}x the bound" if shares else ""
    return f"{error}{share} {over}"


def around_first_difference(case: CaseRecord) -> Iterator[tuple[int, str, str, str]]:
    """Expected, observed and error of the first wrong parameter, from the step before to two steps after."""
    first = case.first_difference
    if first is None or first.parameter not in case.parameters:
        return
    i = case.parameters.index(first.parameter)
    for step in case.steps:
        if first.step - 1 <= step.step <= first.step + 2:
            expected, observed, *_ = values(step, first.quantity, i)
            error = "" if expected is None or observed is None else number(observed - expected, 3)
            yield step.step, *distinct(expected, observed), error
