"""The adapter for fastai conforms in all that it declares."""

from __future__ import annotations

TARGET = "conformance.frameworks.fastai"


def test_every_case_passes(judged):
    assert {case.backend for case in judged} == {"single"}
    assert [case.id for case in judged if not case.verdict.startswith("PASS")] == []


def test_a_short_window_goes_on(judged):
    """`GradientAccumulation` counts samples, whatever epoch they are of."""
    ways = {case.workload: {one.way for one in case.behaviour} for case in judged}
    assert ways["short-window"] == {"last_window=carry"}
    assert ways["short-epochs"] == {"epoch_end=crossed"}
