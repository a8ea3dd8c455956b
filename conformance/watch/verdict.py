"""The verdict on a watched command."""

from __future__ import annotations

from typing import Literal, TypeAlias

from conformance.watch.judging.findings import Findings

Verdict: TypeAlias = Literal["CONFORMS", "DOES NOT CONFORM", "UNDECIDED"]


def verdict(findings: Findings) -> Verdict:
    """Steps that are not decided leave all undecided."""
    if findings.causes:
        return "DOES NOT CONFORM"
    if findings.steps and findings.conserved == findings.steps and not findings.open:
        return "CONFORMS"
    return "UNDECIDED"
