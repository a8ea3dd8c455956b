"""The adapter for Poutyne conforms in all that it declares, but for clipping under accumulation, and for schedules that
are resumed, which is Poutyne's."""

from __future__ import annotations

TARGET = "conformance.frameworks.poutyne"


def test_every_verdict(judged):
    """Known: gradients are clipped after each micro-batch, before they are divided by the number of samples; the first
    epoch after a resume has the first learning rate."""
    failed = {case.id: case.verdict for case in judged if not case.verdict.startswith("PASS")}
    clipped = {case.id for case in judged if case.accumulation > 1 and "clip" in case.workload}
    scheduled = {case.id for case in judged if case.workload == "epoch-schedule" and case.resumed_at is not None}
    assert failed == dict.fromkeys(clipped | scheduled, "FAIL (numerics)")
    assert clipped
    assert scheduled
