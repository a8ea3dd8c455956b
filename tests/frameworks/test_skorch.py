"""The adapter for skorch conforms in all that it declares, but for accumulation, whose gradients skorch clears."""

from __future__ import annotations

TARGET = "conformance.frameworks.skorch"


def test_every_verdict(judged):
    """Known: `zero_grad` comes before the last backward of a window, and schedules count micro-batches."""
    failed = {case.id: case.verdict for case in judged if not case.verdict.startswith("PASS")}
    assert failed == dict.fromkeys((case.id for case in judged if case.accumulation > 1), "FAIL (numerics)")
    assert {case.backend for case in judged} == {"single", "ddp"}


def test_what_is_cleared_inside_is_named(judged):
    causes = {cause for case in judged for cause in case.explained_by}
    assert any("zero-grad-in-window" in cause for cause in causes)
