"""Whether the closure of L-BFGS computes gradients of the weights that it is called at."""

from __future__ import annotations

from typing import Any

import torch

from conformance.trace.state.stamp import Stamp


class Search:
    """What one step of `torch.optim.LBFGS` evaluates."""

    def __init__(self) -> None:
        self._gradients: list[Stamp | None] = []
        self._evaluated = 0

    def begin(self, optimizer: Any) -> None:
        self._gradients, self._evaluated = _gradients(optimizer), _evaluations(optimizer)

    def stale(self, optimizer: Any) -> int:
        """How many times the closure was called, if no gradient was written meanwhile."""
        return 0 if _gradients(optimizer) != self._gradients else _evaluations(optimizer) - self._evaluated


def _gradients(optimizer: Any) -> list[Stamp | None]:
    if not isinstance(optimizer, torch.optim.LBFGS):
        return []
    return [None if one.grad is None else Stamp(one.grad) for one in optimizer._params]


def _evaluations(optimizer: Any) -> int:
    if not isinstance(optimizer, torch.optim.LBFGS):
        return 0
    return int(optimizer.state[optimizer._params[0]].get("func_evals", 0))
