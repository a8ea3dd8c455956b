"""Ranks that average their weights after each step stay in the bound for it, and the bound is no excuse for all."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch

from conformance.oracle.accepted_readings import AVERAGES_WEIGHTS, readings
from conformance.workloads.precision import PRECISIONS
from conformance.workloads.problem import Problem
from conformance.workloads.registry import standard

from .training import Style, _Training, exactly, tree_sum


class _Rank(_Training):
    """One rank, which steps along its own gradients."""

    def window(self, window, rank):
        for parameter, gradient in zip(self.parameters, self._gradients(window, window.shares[rank]), strict=True):
            parameter.grad = gradient
        self.optimizer.step()
        self.scheduler.step()


def averaging(asked, style):
    """The weights after each average."""
    ranks = [_Rank(asked.workload, asked.layout, asked.precision, style) for _ in range(asked.layout.world_size)]
    for window in asked.windows:
        for number, rank in enumerate(ranks):
            rank.window(window, number)
        with torch.no_grad():
            for parts in zip(*(rank.parameters for rank in ranks), strict=True):
                # As torch's averagers do: a sum that is divided afterwards is exact here.
                average = tree_sum([part / len(ranks) for part in parts], ranks[0].random)
                for part in parts:
                    part.copy_(average)
        yield exactly(ranks[0].parameters)


@pytest.mark.parametrize("precision", ["fp64", "fp32", "bf16"])
@pytest.mark.parametrize("workload", ["momentum", "decay", "sgd"])
def test_three_ranks(workload, precision):
    asked = Problem(*standard(workload, 3, 2), PRECISIONS[precision])
    accepted = readings(asked)[0]
    right, bound = accepted.recurrence().run(), accepted.by(None, AVERAGES_WEIGHTS).recurrence().run()
    assert [step.weights.center for step in bound.steps] == [step.weights.center for step in right.steps]
    rounded = False
    for seed in range(4):
        for step, exact, seen in zip(bound.steps, right.steps, averaging(asked, Style(seed=seed)), strict=True):
            assert step.weights.holds(seen)
            rounded |= not exact.weights.holds(seen)
    assert rounded
    # Exact weights are multiples of this, also wrong ones.
    grid = Fraction(1, max(weight.denominator for step in right.steps for weight in step.weights.center))
    assert max(bound.steps[-1].weights.radius) < grid
