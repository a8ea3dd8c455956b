"""The adapter for skorch conforms in all that it declares, but for accumulation, whose gradients skorch clears, and for
schedules and orders that are resumed."""

from __future__ import annotations

TARGET = "conformance.frameworks.skorch"

# The published report has all that a run chooses.
CASES = (
    *(f"single-batched-{precision}-momentum" for precision in ("fp64", "fp32", "bf16")),
    *(f"single-batched-fp32-{workload}" for workload in ("own-order", "epoch-schedule", "large-tensors")),
    *("single-batched-fp64-clip-norm", "single-batched-bf16-two-groups", "single-batched-fp64-adamw"),
    *(
        f"single-acc2-fp32-{workload}"
        for workload in ("momentum", "clip-norm", "epoch-schedule", "own-order", "frozen")
    ),
    *("single-acc3-bf16-momentum", "single-acc4-fp64-short-window", "single-acc2-fp32-many-tensors-resumed-at-3"),
    *(f"ddp-w2-fp32-{workload}" for workload in ("momentum", "two-groups", "adamw", "clip-norm", "uneven-batch")),
    *(f"ddp-w2-fp32-{workload}" for workload in ("own-order", "epoch-schedule", "many-tensors", "two-layers")),
    *(f"ddp-w2-acc2-fp32-{workload}" for workload in ("momentum", "clip-norm", "many-tensors", "short-window")),
    *("ddp-w2-bf16-momentum", "ddp-w3-fp64-decay", "ddp-w3-bf16-clip-norm", "ddp-w4-fp32-momentum"),
    *("single-batched-fp32-epoch-schedule-resumed-at-2", "ddp-w2-acc2-fp32-own-order-resumed-at-3"),
    *(f"{path}-fp32-many-tensors-resumed-at-3" for path in ("single-batched", "ddp-w2")),
)


def test_every_verdict(judged):
    """Known: `zero_grad` comes before the last backward of a window, and schedules count micro-batches; resumed, they
    begin at the number of epochs, and with ranks so does the order of samples at epoch 0."""
    failed = {case.id: case for case in judged if not case.verdict.startswith("PASS")}
    resumed = {f"{path}-fp32-many-tensors-resumed-at-3" for path in ("single-batched", "ddp-w2")}
    assert failed.keys() == {case.id for case in judged if case.accumulation > 1} | resumed
    assert {case.verdict for case in failed.values()} == {"FAIL (numerics)"}
    headlines = [failed[name].headline for name in sorted(resumed)]
    assert ["order of epoch 0" in headlines[0], "learning rate" in headlines[1]] == [True, True]
    assert {case.backend for case in judged} == {"single", "ddp"}


def test_what_is_cleared_inside_is_named(judged):
    causes = {cause for case in judged for cause in case.explained_by}
    assert any("zero-grad-in-window" in cause for cause in causes)
