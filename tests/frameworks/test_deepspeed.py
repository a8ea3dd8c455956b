"""DeepSpeed conforms in all of ZeRO's stages; AdamW's steps over partitions show too little."""

from __future__ import annotations

import pytest

from conformance.cases.case import Case
from conformance.runner.outcome import Outcome
from conformance.verdict.judge import judge

TARGET = " ".join(f"conformance.frameworks.deepspeed:zero_{stage}" for stage in range(4))
CASES = (
    "deepspeed-w2-acc2-fp32-momentum",
    "deepspeed-w2-acc2-bf16-momentum",
    "deepspeed-w2-acc2-fp32-weighted",
    "deepspeed-w3-acc2-fp32-clip-norm",
    "deepspeed-w3-acc2-fp32-adamw",
    "deepspeed-w4-acc2-fp32-short-window",
    "deepspeed-w4-fp32-ranks-start-apart",
)
#: A trainer of stage 1, with something replaced.
MISTAKEN = """
    from conformance import Task
    from conformance.frameworks import deepspeed

    @deepspeed.reference
    def train(task: Task) -> None:
        config, engine = deepspeed.config, deepspeed.deepspeed.DeepSpeedEngine
        {mistake}
        deepspeed.fit(task, stage=1)
"""
MISTAKES = {
    # Each micro-batch is stepped by itself, with the gradient of a mean over two.
    "accumulates nothing": "deepspeed.config = lambda *of: {**config(*of), 'gradient_accumulation_steps': 1}",
    "scales twice": "backward = engine.backward; engine.backward = lambda self, loss: backward(self, loss / 2)",
    "clips all": "deepspeed.config = lambda *of: {**config(*of), 'gradient_clipping': 0.125}",
    "steps the schedule twice": "step = engine.step; engine.step = lambda self: (step(self), self.lr_scheduler.step())",
}


def test_every_verdict(judged):
    """The first-order numbers of AdamW's steps hide factors of gradients, which only the partitions have."""
    failed = {(case.trainer, case.workload): case for case in judged if not case.verdict.startswith("PASS")}
    assert {key: case.verdict for key, case in failed.items()} == {
        (f"zero_{stage}", "adamw"): "INCONCLUSIVE" for stage in (1, 2, 3)
    }
    assert len(judged) == 4 * len(CASES)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_caught(mistake, write, run):
    case = Case("deepspeed", "accumulated", 2, 2, "fp32", "momentum")
    ranks = run(write(MISTAKEN.replace("{mistake}", MISTAKES[mistake])), case)
    assert judge(case, Outcome(ranks, 1.0, False)).verdict in ("FAIL (numerics)", "SETUP")
