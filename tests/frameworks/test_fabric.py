"""The adapter for Lightning Fabric conforms in all that it declares, but for double precision, which is Fabric's."""

from __future__ import annotations

TARGET = "conformance.frameworks.fabric"
# Those whose outputs have more bits than float32.
LONG = {"adamw", "adamw-clip", "clip-norm", "line", "many-clip-norm", "multivariate", "two-workers"}


def test_every_verdict(judged):
    """Known: with "64-true" the outputs of the model are rounded to float32."""
    failed = {case.id: case.verdict for case in judged if not case.verdict.startswith("PASS")}
    rounded = {case.id for case in judged if case.precision == "fp64" and case.workload in LONG}
    assert failed == dict.fromkeys(rounded, "FAIL (numerics)")
    assert {case.backend for case in judged} == {"single", "ddp"}
