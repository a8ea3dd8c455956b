"""The adapter for Poutyne conforms in all that it declares, but for clipping under accumulation, which is Poutyne's."""

from __future__ import annotations

TARGET = "conformance.frameworks.poutyne"


def test_every_verdict(judged):
    """Known: gradients are clipped after each micro-batch, before they are divided by the number of samples."""
    failed = {case.id: case.verdict for case in judged if not case.verdict.startswith("PASS")}
    clipped = {case.id for case in judged if case.accumulation > 1 and "clip" in case.workload}
    assert failed == dict.fromkeys(clipped, "FAIL (numerics)")
    assert clipped
