"""Whether a script changes weights between steps: one that searches along a line goes back, and ranks that each train
for a while send each other what they have."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch

from conformance.watch.recording.later import later
from conformance.watch.recording.parameters import Known, own

_LOOKED_AT, _FEW = 8, 64
"""Of so many parameters, spread over them all, so many elements: going back changes all that a step has changed."""


def remember(held: Sequence[tuple[Known, Any]]) -> None:
    """A step is over. Weights may be changed by their `data`, which their versions do not show."""
    for known, parameter in _some(held):
        known.left = _beginning(own(parameter.data)).clone()


def have_changed(held: Sequence[tuple[Known, Any]]) -> Any:
    """Whether they have, since the last step of whatever optimizer: known now or `later`."""
    pairs: dict[tuple[torch.device, torch.dtype], list[tuple[torch.Tensor, torch.Tensor]]] = defaultdict(list)
    for known, parameter in _some(held):
        now = _beginning(own(parameter.data))
        # A model may be moved to another device in between, or be made of another format.
        if known.left is not None and _kind(known.left) == _kind(now) and known.left.shape == now.shape:
            pairs[_kind(now)].append((known.left, now))
    differ = [torch.ne(*map(torch.cat, zip(*of_kind, strict=True))).any() for of_kind in pairs.values()]
    if len({one.device for one in differ}) == 1:
        return later(bool, torch.stack(differ).any())
    return any(map(bool, differ))


def _kind(tensor: torch.Tensor) -> tuple[torch.device, torch.dtype]:
    return tensor.device, tensor.dtype


def _some(held: Sequence[tuple[Known, Any]]) -> Sequence[tuple[Known, Any]]:
    return held[:: -(-len(held) // _LOOKED_AT) or 1]


def _beginning(weight: torch.Tensor) -> torch.Tensor:
    """A view, however its elements lie in memory."""
    while weight.dim() > 1 and weight.numel():
        weight = weight[0]
    return weight.reshape(-1)[:_FEW]
