"""Applying all laws to a run, and making one finding of one cause."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from conformance.laws.law import Broken, Check, Law, laws
from conformance.laws.run import Run


@dataclass(frozen=True)
class Finding:
    """One law, broken by one line, however often.

    count: in how many windows of how many ranks. ranks: which. window: the first one, None before training.
    """

    law: Law
    broken: Broken
    count: int
    ranks: tuple[int, ...]
    window: int | None


@dataclass(frozen=True)
class Verified:
    """What became of one law: on how many windows it was checked (0: not exercised), and what was found."""

    law: Law
    checked: int
    findings: tuple[Finding, ...]


def check(run: Run) -> tuple[Verified, ...]:
    """Every law on ``run``, by id."""
    return tuple(_verified(law, tuple(law.checks(run))) for law in laws())


def breaks(run: Run) -> tuple[tuple[Law, Broken], ...]:
    """What broke which law, every time that it did: MUSTs first, then by id."""
    found = [(law, check.broken) for law in laws() for check in law.checks(run) if check.broken is not None]
    return tuple(sorted(found, key=lambda pair: pair[0].level))


def findings(verified: Iterable[Verified]) -> tuple[Finding, ...]:
    """What was found, MUSTs first, then in the order in which it happened."""
    found = [finding for law in verified for finding in law.findings]
    return tuple(sorted(found, key=lambda finding: (finding.law.level, finding.window or 0, finding.broken.event.seq)))


def _verified(law: Law, checks: tuple[Check, ...]) -> Verified:
    causes: dict[object, list[tuple[Check, Broken]]] = {}
    for check in checks:
        if check.broken is not None:
            event = check.broken.event
            causes.setdefault(event.where or event.kind, []).append((check, check.broken))
    return Verified(law, len(checks), tuple(_merged(law, cause) for cause in causes.values()))


def _merged(law: Law, cause: list[tuple[Check, Broken]]) -> Finding:
    first, shown = min(cause, key=lambda pair: (pair[0].window or 0, pair[0].rank or 0))
    ranks = {rank for check, broken in cause for rank in ([broken.event.rank] if check.rank is None else [check.rank])}
    return Finding(law, shown, len(cause), tuple(sorted(ranks)), first.window)
