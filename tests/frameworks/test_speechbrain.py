"""The adapter for SpeechBrain conforms in all that it declares, but for two things that are SpeechBrain's."""

from __future__ import annotations

TARGET = "conformance.frameworks.speechbrain"

CLIPPED_GROUPS = ("two-groups-clip", "adamw-groups", "groups-clip-norm")
# The published report has all that a run chooses.
CASES = (
    *("single-batched-fp32", "single-acc2-fp32", "single-acc2-bf16", "ddp-w2-fp32", "ddp-w2-acc2-bf16"),
    *("ddp-w2-acc2-fp32-momentum", "ddp-w2-acc2-fp32-two-groups-clip", "ddp-w2-acc2-fp32-own-order"),
    *("ddp-w2-acc2-fp32-epoch-schedule", "ddp-w2-acc2-fp32-short-epochs", "ddp-w2-acc2-fp32-momentum-resumed-at-3"),
    "ddp-w2-acc2-fp32-momentum-resumed-at-3-killed",
)


def test_every_verdict(judged):
    """Known: parameter groups but the first are not clipped, and a checkpoint that was cut off is taken."""
    failed = {case.id: case for case in judged if not case.verdict.startswith("PASS")}
    assert {case.id: case.verdict for case in failed.values()} == {
        **dict.fromkeys((case.id for case in judged if case.workload in CLIPPED_GROUPS), "FAIL (numerics)"),
        **dict.fromkeys((case.id for case in judged if "-killed" in case.id), "CRASH"),
    }
    clipped = [case for case in failed.values() if case.verdict != "CRASH"]
    assert ["clip/all-parameters" in {finding.law for finding in case.findings} for case in clipped] == [True] * 4
    assert {case.backend for case in judged} == {"single", "ddp"}
