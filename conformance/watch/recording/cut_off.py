"""Losses that are cut off from all models: numbers that a script has made anew, as `torch.tensor(loss.item(),
requires_grad=True)` and `loss.detach().requires_grad_()` do. Their backward pass ends where it begins."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch

_MOST_NODES = 12
"""Divisions and loss scales may come after."""


class CutOff:
    """Has to be asked once for each backward pass."""

    def __init__(self) -> None:
        self._last: weakref.ref[torch.Tensor] | None = None

    def sees(self, root: Any, tensors: Sequence[Any]) -> bool:
        """Whether the loss comes from a single number alone, which was none in the backward pass before: one that is
        trained by hand stays. root: the node where it begins, None for a leaf."""
        before = None if self._last is None else self._last()
        leaf = _leaf(root) if root is not None else tensors[0] if len(tensors) == 1 else None
        if not isinstance(leaf, torch.Tensor) or isinstance(leaf, torch.nn.Parameter) or leaf.numel() != 1:
            return False
        self._last = weakref.ref(leaf)
        return before is not leaf


def _leaf(node: Any) -> Any:
    """What a chain of nodes without branches ends in; None if it does not end soon."""
    for _ in range(_MOST_NODES):
        following = [one for one, _ in node.next_functions if one is not None]
        if len(following) != 1:
            return getattr(node, "variable", None)
        [node] = following
    return None
