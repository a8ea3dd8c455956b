"""The adapter for Lightning Fabric conforms in all that it declares, but for double precision, which is Fabric's."""

from __future__ import annotations

TARGET = "conformance.frameworks.fabric"

# The published report has all that a run chooses.
CASES = (
    *(
        "single-batched-fp32-momentum",
        "single-acc2-fp16-overflow",
        "single-batched-bf16-decay",
        "single-acc3-fp64-weighted",
    ),
    *("single-acc2-fp32-own-order", "single-acc4-fp32-short-window", "single-acc2-fp16-growing-scale-resumed-at-3"),
    *(f"single-acc2-fp32-{workload}-resumed-at-3" for workload in ("short-epochs", "frozen", "own-order")),
    *(f"single-acc2-fp64-{workload}" for workload in ("adamw-clip", "many-clip-norm", "line", "many-tensors")),
    *(f"ddp-w2-acc2-fp32-{workload}" for workload in ("weighted", "clip-norm", "clip-value", "two-groups", "adamw")),
    *(f"ddp-w2-acc2-fp32-{workload}" for workload in ("short-epochs", "own-order", "sampler-drops", "uneven-batch")),
    *(f"ddp-w2-acc2-fp16-{workload}" for workload in ("overflow-clip", "infinite-loss", "many-tensors")),
    *(f"ddp-w2-acc2-fp32-{workload}-resumed-at-4" for workload in ("many-tensors", "own-order", "sampler-pads")),
    *(f"ddp-w2-fp64-{workload}" for workload in ("line", "two-workers", "momentum")),
    *(
        "ddp-w2-acc2-fp64-adamw-resumed-at-3",
        "ddp-w3-fp64-clip-norm",
        "ddp-w3-acc2-bf16-momentum",
        "ddp-w4-fp32-momentum",
    ),
    *("single-batched-fp64-multivariate", "ddp-w2-acc2-fp32-momentum-resumed-at-3-twice"),
)
# Those whose outputs have more bits than float32.
LONG = {"adamw", "adamw-clip", "clip-norm", "line", "many-clip-norm", "multivariate", "two-workers"}


def test_every_verdict(judged):
    """Known: with "64-true" the outputs of the model are rounded to float32."""
    failed = {case.id: case.verdict for case in judged if not case.verdict.startswith("PASS")}
    rounded = {case.id for case in judged if case.precision == "fp64" and case.workload in LONG}
    assert failed == dict.fromkeys(rounded, "FAIL (numerics)")
    assert {case.workload for case in judged if case.id in rounded} == LONG
    assert {case.backend for case in judged} == {"single", "ddp"}
