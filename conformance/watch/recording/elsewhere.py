"""Whether a script changes weights between steps: one that searches along a line goes back, and ranks that each train
for a while send each other what they have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from conformance.watch.recording.parameters import Known, own

_LOOKED_AT, _FEW = 8, 64
"""Of so many parameters, spread over them all, so many elements: going back changes all that a step has changed."""


def remember(held: Sequence[tuple[Known, Any]]) -> None:
    """A step is over. Weights may be changed by their `data`, which their versions do not show."""
    for known, parameter in _some(held):
        known.left = _beginning(own(parameter.data)).clone()


def have_changed(held: Sequence[tuple[Known, Any]]) -> bool:
    """Since the last step, of whatever optimizer."""
    return any(
        known.left is not None
        and known.left.shape == (now := _beginning(own(parameter.data))).shape
        and not torch.equal(known.left, now)
        for known, parameter in _some(held)
    )


def _some(held: Sequence[tuple[Known, Any]]) -> Sequence[tuple[Known, Any]]:
    return held[:: -(-len(held) // _LOOKED_AT) or 1]


def _beginning(weight: torch.Tensor) -> torch.Tensor:
    """A view, however its elements lie in memory."""
    while weight.dim() > 1 and weight.numel():
        weight = weight[0]
    return weight.reshape(-1)[:_FEW]
