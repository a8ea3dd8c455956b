"""Known bugs of master weights, which the optimizer steps and the model gets copies of."""

from __future__ import annotations

from functools import lru_cache

from conformance.oracle.affine import Affine
from conformance.oracle.faults.catalogue import (
    computes_precisely,
    computes_roughly,
    fault,
    has_wide_bounds,
)
from conformance.oracle.faults.checkpoints import resumes
from conformance.oracle.recurrence import Recurrence
from conformance.oracle.rounding import cast
from conformance.workloads.precision import BF16
from conformance.workloads.problem import Problem

#: Windows whose weights are looked at.
_FIRST = 3


class _Masters(Recurrence):
    """Steps masters; the model's weights are those that show."""

    _masters: Affine | None = None

    def update(self, weights: Affine, vector: Affine, step: int) -> Affine:
        before = self._masters or weights
        self._masters = super().update(before, vector, step)
        return self.copied(before, self._masters)

    def copied(self, before: Affine, stepped: Affine) -> Affine:
        """The model's weights after a step that changed the masters from ``before`` to ``stepped``."""
        return stepped


def _steps_again(problem: Problem) -> bool:
    return problem.workload.steps > 1


@fault(
    "copies master weights to the model before the optimizer steps them",
    _steps_again,
    is_fine=has_wide_bounds,
    fix="copy the masters to the model after the step",
    why="The model is always one step behind its masters",
)
class MastersCopiedBeforeStep(_Masters):
    def copied(self, before: Affine, stepped: Affine) -> Affine:
        return before


@lru_cache(maxsize=128)
def _are_fine(problem: Problem) -> bool:
    """Whether bfloat16 rounds the weights after one of the first steps."""
    pairs = zip(*(kind(problem).steps(_FIRST) for kind in (Recurrence, MastersCopiedInBfloat16)), strict=True)
    return any(right.weights.gap(rounded.weights) > 1 for right, rounded in pairs)


@fault(
    "rounds the model's weights to bfloat16 when it copies them from its master weights",
    computes_precisely,
    _are_fine,
    is_fine=has_wide_bounds,
    fix="copy the masters in the precision of the model's weights",
    why="The masters are correct, but gradients are those of rounded weights",
)
class MastersCopiedInBfloat16(_Masters):
    def copied(self, before: Affine, stepped: Affine) -> Affine:
        return cast(stepped, BF16)


@fault(
    "restores the model's weights on resume, but steps on from the initial master weights",
    resumes,
    is_fine=computes_roughly,
    fix="save and load the master weights, or copy the restored weights into them",
    why="The first step after the resume starts from masters that were never trained",
)
class MastersNotRestored(_Masters):
    def resumed(self, weights: Affine, taken: int) -> Affine:
        self._masters = self.symbols.exactly(self.problem.workload.start)
        return super().resumed(weights, taken)
