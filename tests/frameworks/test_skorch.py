"""The adapter for skorch conforms in all that it declares, but for accumulation, whose gradients skorch clears, and for
schedules and orders that are resumed."""

from __future__ import annotations

TARGET = "conformance.frameworks.skorch"


def test_every_verdict(judged):
    """Known: `zero_grad` comes before the last backward of a window, and schedules count micro-batches; resumed, they
    begin at the number of epochs, and with ranks so does the order of samples at epoch 0."""
    failed = {case.id: case for case in judged if not case.verdict.startswith("PASS")}
    resumed = {f"{path}-fp32-many-tensors-resumed-at-3" for path in ("single-batched", "ddp-w2")}
    assert failed.keys() == {case.id for case in judged if case.accumulation > 1} | resumed
    assert {case.verdict for case in failed.values()} == {"FAIL (numerics)"}
    headlines = [failed[name].headline for name in sorted(resumed)]
    assert ["order of epoch 0" in headlines[0], "learning rate" in headlines[1]] == [True, True]
    assert {case.backend for case in judged} == {"single", "ddp"}


def test_what_is_cleared_inside_is_named(judged):
    causes = {cause for case in judged for cause in case.explained_by}
    assert any("zero-grad-in-window" in cause for cause in causes)
