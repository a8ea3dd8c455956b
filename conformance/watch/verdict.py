"""The verdict on a watched command, and its text."""

from __future__ import annotations

from typing import Literal, TypeAlias

from conformance.watch.judging.findings import Cause, Findings

Verdict: TypeAlias = Literal["CONFORMS", "DOES NOT CONFORM", "UNDECIDED"]


def verdict(findings: Findings) -> Verdict:
    """Steps that are not decided leave all undecided."""
    if findings.causes:
        return "DOES NOT CONFORM"
    if findings.steps and findings.conserved == findings.steps and not findings.open:
        return "CONFORMS"
    return "UNDECIDED"


def lines(findings: Findings) -> list[str]:
    """What to print."""
    printed = [
        f"{verdict(findings)}: {_steps(findings)}",
        *(line for cause in findings.causes.values() for line in _cause(cause)),
    ]
    if findings.open:
        printed += ["", "Undecided:"]
        printed += [f"  {why} ({_times(count)})" for why, count in findings.open.items()]
    if not findings.steps:
        printed += ["  no step of a torch optimizer was seen; `conformance init` makes an adapter instead"]
    if findings.notes:
        printed += ["", "Notes:", *(f"  {what} ({_times(count)})" for what, count in findings.notes.items())]
    return printed


def _steps(findings: Findings) -> str:
    return (
        f"in {findings.conserved} of {findings.steps} steps (counted on each rank) "
        "the gradients used are those that were computed"
    )


def _cause(cause: Cause) -> list[str]:
    first = cause.first
    at = [] if first.site is None else [f"{first.site[0]}:{first.site[1]}"]
    where = [*at, f"rank{'s' if len(cause.ranks) > 1 else ''} {', '.join(map(str, sorted(cause.ranks)))}"]
    if first.step is not None:
        where.append(f"first at step {first.step}")
    if first.optimizer:
        where.append(f"of optimizer {first.optimizer}")
    if cause.count > 1:
        where.append(f"{cause.count} times")
    law = first.text
    return [
        "",
        f"{law.id}  {', '.join(where)}",
        f"  {first.says}",
        f"  {law.says} {law.why}",
        *([] if first.effect is None else [f"  Effect: {first.effect}"]),
        f"  Fix: {law.fix}",
    ]


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
