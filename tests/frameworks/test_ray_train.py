"""Ray Train's TorchTrainer conforms in all that its adapter declares, and a loop that leaves `prepare_model` out does
not.
"""

from __future__ import annotations

TARGET = "conformance.trainers.ray_train"


def test_every_verdict(judged):
    assert {case.id: case.headline for case in judged if not case.verdict.startswith("PASS")} == {}
    assert {case.precision for case in judged} == {"fp64", "fp32", "bf16", "fp16"}
    assert {case.path for case in judged} == {"ray-train-w2", "ray-train-w2-acc2", "ray-train-w3-acc2"}


def test_mutant_is_caught(caught):
    caught("model_not_prepared")
