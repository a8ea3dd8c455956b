"""The loss scale that a loss carries when it is backpropagated."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import torch

from conformance.trace.state.saved import saved
from conformance.trace.values import tensors_in

_KEY = "conformance.loss_scale"
_MOST_NODES = 64
_PRODUCT = "MulBackward0"
_LINEAR = {
    f"{operation}Backward{variant}"
    for operation in (
        *("Add", "Sub", "Mul", "Div", "Neg", "Sum", "Mean", "Stack", "Cat"),
        *("ToCopy", "Clone", "View", "Reshape", "Squeeze", "Unsqueeze", "Select", "Unbind", "Expand", "Alias"),
    )
    for variant in (0, 1)
}
"""What a loss passes on its way from `scale` to `backward`: sums, division by a length, casts."""


def mark(tensors: Any, factor: float) -> None:
    """Remember that these tensors (one, or lists of them) are multiplied by `factor`."""
    for tensor in tensors_in(tensors):
        if tensor.grad_fn is not None:
            node: Any = tensor.grad_fn
            node.metadata[_KEY] = factor


def carried(root: Any, scalers: Sequence[torch.amp.GradScaler]) -> float | None:
    """The product of the scales that went into a loss, given by its node of the graph; None if there are none.

    They went in by `mark`, or by hand: as a factor that is the scale of one of `scalers`.
    """
    product = None
    queue = deque([root] if root is not None else [])
    for _ in range(_MOST_NODES):
        if not queue:
            break
        node = queue.popleft()
        name = node.name()
        factor: float | None = node.metadata.get(_KEY) or (_factor(node, scalers) if name == _PRODUCT else None)
        if factor is not None:
            product = factor * (product or 1.0)
            queue.clear()
        if name in _LINEAR:
            queue.extend(following for following, _ in node.next_functions if following is not None)
    return product


def _factor(node: Any, scalers: Sequence[torch.amp.GradScaler]) -> float | None:
    """The scale of one of `scalers` that this product multiplies by."""
    if not scalers:
        return None
    # A factor of 1 by hand would be any factor of 1.
    scales = {scaler.get_scale() for scaler in scalers} - {1.0}
    try:
        found = [saved(node, name) for name in ("self", "other")]
    except RuntimeError:
        # Freed by the backward before, so this one will fail and say so.
        return None
    factors = [tensor.item() for tensor in found if isinstance(tensor, torch.Tensor) and tensor.numel() == 1]
    return next((factor for factor in factors if factor in scales), None)
