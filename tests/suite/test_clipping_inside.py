"""Optimizers that clip inside their own step: correct ones pass, and those that do not clip fail."""

from __future__ import annotations

from pathlib import Path

import pytest

TRAINER = """
import torch
from conformance import Task, trainer


class Clipping(torch.optim.SGD):
    \"\"\"Clips, and steps as torch does.\"\"\"

    def step(self, closure=None):
        if {clips}:
            self.task.clip_(self.param_groups[0]["params"])
        return super().step(closure)


class Fused(torch.optim.SGD):
    \"\"\"Steps by clipped gradients that it keeps to itself.\"\"\"

    @torch.no_grad()
    def step(self, closure=None):
        [group] = self.param_groups
        for parameter in group["params"]:
            gradient = parameter.grad
            if self.task.clip and {clips}:
                gradient = gradient.clamp(-self.task.clip.threshold, self.task.clip.threshold)
            state = self.state[parameter]
            state["sum"] = gradient + group["momentum"] * state.get("sum", 0.0)
            change = gradient + group["momentum"] * state["sum"] if group["nesterov"] else state["sum"]
            parameter.add_(change, alpha=-group["lr"])


@trainer(clips=["value"], precisions=["fp32"], optimizers=["sgd"], schedules=[], parameter_groups=[1])
def train(task: Task) -> None:
    model = task.model()
    optimizer = {kind}(model.parameters(), **task.optimizer_settings.arguments)
    optimizer.task = task
    for window in task.windows():
        for batch in window:
            (task.loss(model(batch.inputs), batch) / len(window)).backward()
        optimizer.step()
        optimizer.zero_grad()
"""

CASE = "single-acc2-fp32-clip-value"


@pytest.mark.parametrize(
    ("kind", "clips", "verdict"),
    [
        ("Clipping", True, "PASS (exact)"),
        ("Fused", True, "PASS (exact)"),
        ("Clipping", False, "SETUP"),  # never asks for the clip
        ("Fused", False, "FAIL (numerics)"),
    ],
)
def test_a_step_that_clips(conformance, folder, cases, kind, clips, verdict):
    Path("inside.py").write_text(TRAINER.format(kind=kind, clips=clips))
    conformance("run", "inside.py", "--case", CASE)
    case = cases()["inside", CASE]
    assert case["verdict"] == verdict, case["headline"]
