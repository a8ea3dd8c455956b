"""The adapter for TorchTNT conforms in all that it declares, but for short windows, which is TorchTNT's."""

from __future__ import annotations

TARGET = "conformance.frameworks.torchtnt"


def test_every_verdict(judged):
    """Known: the loss is divided by `gradient_accumulation_steps` in a short last window too."""
    divided = {case.id for case in judged if is_divided_by_the_nominal_length(case)}
    failed = {case.id: case for case in judged if not case.verdict.startswith("PASS")}
    assert failed.keys() == divided
    assert {(case.verdict, case.explained_by) for case in failed.values()} == {("FAIL (numerics)", ("nominal-length",))}
    assert {case.backend for case in judged} == {"single", "ddp"}


def is_divided_by_the_nominal_length(case):
    return case.workload in ("short-window", "short-epochs") or (case.workload, case.path) == (
        "uneven-batch",
        "single-acc4",
    )
