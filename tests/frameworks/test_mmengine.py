"""The adapter for MMEngine conforms in all that it declares."""

from __future__ import annotations

TARGET = "conformance.frameworks.mmengine"

# The published report has all that a run chooses.
CASES = (
    *("single-batched-fp64-momentum", "single-acc2-bf16-short-window", "ddp-w2-acc2-bf16-short-window"),
    *(
        f"single-acc2-fp32-{workload}"
        for workload in ("clip-value", "two-groups-clip", "adamw", "uneven-batch", "line")
    ),
    *(f"single-acc2-fp32-{workload}" for workload in ("short-epochs", "sparse", "frozen", "own-order-resumed-at-4")),
    "single-acc2-fp32-momentum-resumed-at-3-killed",
    *(f"ddp-w2-acc2-fp32-{workload}" for workload in ("momentum", "clip-norm", "two-groups", "own-order", "unused")),
    *("ddp-w2-acc2-fp32-buffers", "ddp-w2-acc2-fp32-sampler-pads", "ddp-w2-acc2-fp64-many-clip-norm"),
    *("ddp-w2-acc2-fp32-epoch-schedule", "ddp-w2-acc2-fp32-short-epochs", "ddp-w3-acc2-fp32-short-epochs"),
    *("ddp-w2-acc2-fp32-momentum-resumed-at-3", "ddp-w2-acc2-fp32-momentum-resumed-at-4-on-3-ranks"),
)


def test_every_case_passes(judged):
    assert {case.backend for case in judged} == {"single", "ddp"}
    assert [case.id for case in judged if not case.verdict.startswith("PASS")] == []


def test_windows_go_on_over_the_end_of_an_epoch(judged):
    """The Runner counts iterations from the beginning of training."""
    short = [case for case in judged if case.workload == "short-epochs"]
    assert {tuple(one.way for one in case.behaviour) for case in short} == {("epoch_end=crossed",)}
