"""The adapter for Poutyne conforms in all that it declares, but for clipping under accumulation, and for schedules that
are resumed, which is Poutyne's."""

from __future__ import annotations

TARGET = "conformance.frameworks.poutyne"

# The published report has all that a run chooses.
CASES = (
    *(f"single-batched-fp32-{workload}" for workload in ("clip-value", "own-order", "epoch-schedule", "large-tensors")),
    *("single-batched-fp64-adamw", "single-batched-fp64-line", "single-batched-fp32-epoch-schedule-resumed-at-2"),
    *(f"single-acc2-fp32-{workload}" for workload in ("adamw", "sgd", "adagrad", "short-window", "uneven-batch")),
    *(f"single-acc2-fp32-{workload}" for workload in ("own-order", "epoch-schedule", "own-order-resumed-at-3")),
    *(f"single-acc2-fp32-{workload}" for workload in ("clip-value", "many-clip-value", "unused-clip-value")),
    *(f"single-acc2-fp64-{workload}" for workload in ("clip-value", "many-clip-norm", "finer-data", "two-workers")),
    *("single-acc3-fp64-short-window", "single-acc4-fp32-clip-value", "single-acc4-fp64-uneven-batch"),
)


def test_every_verdict(judged):
    """Known: gradients are clipped after each micro-batch, before they are divided by the number of samples; the first
    epoch after a resume has the first learning rate."""
    failed = {case.id: case.verdict for case in judged if not case.verdict.startswith("PASS")}
    clipped = {case.id for case in judged if case.accumulation > 1 and "clip" in case.workload}
    scheduled = {case.id for case in judged if case.workload == "epoch-schedule" and case.resumed_at is not None}
    assert failed == dict.fromkeys(clipped | scheduled, "FAIL (numerics)")
    assert clipped
    assert scheduled
