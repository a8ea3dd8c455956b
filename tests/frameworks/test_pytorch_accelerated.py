"""The adapter for pytorch-accelerated conforms in all that it declares, but for what is the Trainer's."""

from __future__ import annotations

TARGET = "conformance.frameworks.pytorch_accelerated"
# The published report has all that a run chooses.
CASES = (
    *(f"single-batched-fp32-{workload}" for workload in ("momentum", "own-order", "large-tensors")),
    *(
        "single-batched-bf16-momentum",
        "single-batched-fp64-two-groups",
        "single-batched-fp32-many-tensors-resumed-at-3",
    ),
    *(f"single-acc2-fp32-{workload}" for workload in ("adamw", "adagrad", "clip-value", "many-clip-value", "frozen")),
    *(f"single-acc2-fp32-{workload}" for workload in ("short-window", "uneven-batch", "short-epochs", "own-order")),
    *("single-acc2-fp32-own-order-resumed-at-3", "single-acc2-fp32-short-epochs-resumed-at-3"),
    *("single-acc2-bf16-cast-weights", "single-acc2-bf16-clip-value", "single-acc2-fp64-finer-data"),
    *("single-acc3-bf16-decay", "single-acc4-fp64-uneven-batch", "single-acc2-fp64-two-workers"),
    *("ddp-w2-fp64-uneven-batch", "ddp-w2-fp32-two-groups", "ddp-w2-fp32-ranks-start-apart"),
    *(f"ddp-w2-acc2-fp32-{workload}" for workload in ("momentum", "clip-value", "many-clip-value", "short-window")),
    *(f"ddp-w2-acc2-fp32-{workload}" for workload in ("sampler-drops", "sampler-pads", "own-order", "many-tensors")),
    *(f"ddp-w2-acc2-fp32-{workload}" for workload in ("short-epochs", "two-layers", "sampler-pads-resumed-at-4")),
    *("ddp-w2-acc2-fp32-frozen-resumed-at-3", "ddp-w2-acc2-fp32-many-groups-resumed-at-3", "ddp-w2-acc2-fp64-line"),
    *("ddp-w3-acc2-fp32-sampler-pads", "ddp-w3-fp64-adamw", "ddp-w4-bf16-momentum", "ddp-w4-acc3-fp32-clip-value"),
)
# Where the first micro-batch exceeds the threshold, the second adds nothing: it is clipped to the same.
UNHARMED = "single-acc2-fp32-many-clip-value"


def test_every_verdict(judged):
    """Known: it clips after each micro-batch, and divides by the accumulation in a short last window too."""
    judged = [case for case in judged if case.resumed_at is None]
    clipped = {case.id for case in judged if case.accumulation > 1 and "clip" in case.workload} - {UNHARMED}
    divided = {case.id for case in judged if is_divided_by_the_nominal_length(case)}
    failed = {case.id: case for case in judged if not case.verdict.startswith("PASS")}
    assert failed.keys() == clipped | divided
    assert {case.verdict for case in failed.values()} == {"FAIL (numerics)"}
    assert {case.id for case in failed.values() if "clip/once-per-window" in laws_of(case)} == clipped
    assert {case.id for case in failed.values() if case.explained_by == ("nominal-length",)} == divided
    assert {case.backend for case in judged} == {"single", "ddp"}


def test_no_training_that_is_resumed_goes_on_where_it_was(judged):
    """Known: it repeats the epoch that it had finished, and refuses all checkpoints but the first."""
    verdicts = {case.id: case.verdict for case in judged if case.resumed_at is not None}
    assert verdicts.pop("ddp-w2-acc2-fp32-sampler-pads-resumed-at-4") == "CRASH"
    assert {*verdicts.values()} == {"FAIL (numerics)"}


def laws_of(case):
    return {finding.law for finding in case.findings}


def is_divided_by_the_nominal_length(case):
    return case.workload in ("short-window", "short-epochs") or (case.workload, case.path) == (
        "uneven-batch",
        "single-acc4",
    )
