"""The adapter for Keras on torch conforms in all that it declares, but for three things that are Keras's."""

from __future__ import annotations

TARGET = "conformance.frameworks.keras"
# Where the size of a micro-batch is a power of two, nothing is.
ROUNDED = (
    *("single-batched-fp64-multivariate", "single-batched-fp64-weighted", "single-acc2-fp64-finer-data"),
    *("single-acc2-fp64-many-clip-norm", "single-acc2-fp64-short-window", "single-acc4-fp64-short-window"),
)
INSIDE_AN_EPOCH = (
    *("single-acc2-fp64-finer-data-resumed-at-2", "single-acc2-fp32-clip-value-resumed-at-3"),
    "single-acc2-fp32-own-order-resumed-at-4",
)


def test_every_verdict(judged):
    """Known: float64 is divided in float32, accumulated gradients are lost where the last micro-batch has none, and an
    epoch begins again where training is resumed inside it.
    """
    failed = {case.id: case.verdict for case in judged if not case.verdict.startswith("PASS")}
    wrong = (*ROUNDED, *INSIDE_AN_EPOCH, "single-acc2-fp32-unused-clip-value")
    assert failed == dict.fromkeys(wrong, "FAIL (numerics)")
    assert {case.backend for case in judged} == {"single"}


def test_a_short_last_window_is_left_unstepped(judged):
    short = [case for case in judged if case.workload == "short-window" and case.verdict.startswith("PASS")]
    assert {tuple(one.way for one in case.behaviour) for case in short} == {("last_window=unstepped",)}
