"""The adapter for FunASR conforms but for three things: accumulation under DDP, its schedule, a checkpoint cut off."""

from __future__ import annotations

TARGET = "conformance.frameworks.funasr"

# The published report has all that a run chooses.
CASES = (
    *("single-batched-fp32-momentum", "single-acc2-fp32-clip-norm", "single-acc2-fp32-short-window"),
    *("single-acc2-fp32-many-tensors", "single-acc2-fp32-many-tensors-resumed-at-3", "ddp-w2-fp32-momentum"),
    *(f"single-acc2-fp32-momentum-resumed-at-3{how}" for how in ("", "-twice", "-killed", "-killed-between-files")),
    *("ddp-w2-fp32-momentum-resumed-at-4", "ddp-w2-acc2-fp32-momentum", "ddp-w3-acc2-fp32-sgd"),
)


def test_every_verdict(judged):
    """Known: only the first micro-batch of a window crosses the ranks; the schedule goes on after each epoch, too; the
    last checkpoint is written over.
    """
    failed = {case.id: case.verdict for case in judged if not case.verdict.startswith("PASS")}
    assert failed == {
        "ddp-w2-acc2-fp32-momentum": "DIVERGED",
        "ddp-w3-acc2-fp32-sgd": "DIVERGED",
        "single-acc2-fp32-many-tensors": "FAIL (numerics)",
        "single-acc2-fp32-many-tensors-resumed-at-3": "FAIL (numerics)",
        "single-acc2-fp32-momentum-resumed-at-3-killed-between-files": "CRASH",
    }
    scheduled = [case for case in judged if case.verdict == "FAIL (numerics)"]
    assert {"schedule-after-epochs-too" in case.explained_by for case in scheduled} == {True}
