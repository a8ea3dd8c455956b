"""The adapter for fastai conforms in all that it declares."""

from __future__ import annotations

TARGET = "conformance.frameworks.fastai"

# The published report has all that a run chooses.
CASES = (
    *(f"single-batched-fp64-{workload}" for workload in ("momentum", "clip-norm", "two-groups", "line")),
    *(f"single-batched-fp32-{workload}" for workload in ("own-order", "epoch-schedule", "large-tensors")),
    *("single-batched-fp32-epoch-schedule-resumed-at-2", "single-batched-fp32-many-tensors-resumed-at-3"),
    *(f"single-acc2-fp32-{workload}" for workload in ("adamw", "adagrad", "clip-norm", "adamw-groups", "two-layers")),
    *(f"single-acc2-fp32-{workload}" for workload in ("short-window", "uneven-batch", "short-epochs", "own-order")),
    *(f"single-acc2-fp32-{workload}" for workload in ("epoch-schedule", "many-tensors", "frozen")),
    *(f"single-acc2-fp32-{workload}-resumed-at-3" for workload in ("own-order", "frozen", "many-groups")),
    *(f"single-acc2-fp64-{workload}" for workload in ("finer-data", "many-clip-norm", "two-workers")),
    *("single-acc3-fp64-short-window", "single-acc4-fp32-uneven-batch"),
)


def test_every_case_passes(judged):
    assert {case.backend for case in judged} == {"single"}
    assert [case.id for case in judged if not case.verdict.startswith("PASS")] == []


def test_a_short_window_goes_on(judged):
    """`GradientAccumulation` counts samples, whatever epoch they are of."""
    ways = {case.workload: {one.way for one in case.behaviour} for case in judged}
    assert ways["short-window"] == {"last_window=carry"}
    assert ways["short-epochs"] == {"epoch_end=crossed"}
