"""The graphs that backwards begin in, the loss scale that a loss carries, and the forwards that a backward reaches."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils.hooks import RemovableHandle

from conformance.trace.seams.guarding import harmless
from conformance.trace.state.nested import Nested
from conformance.trace.values import Number, elements, tensors_in


def saved(node: Any, name: str) -> Any:
    """What `node` has saved by this name; None if it has not, or if hooks keep it: they may compute it again as
    checkpointing does, read it from a disk, or hand it out only once. A Python number is never with them."""
    # Torch 2.6 does not tell whether there are hooks.
    if getattr(getattr(node, f"_raw_saved_{name}", None), "unpack_hook", None) is not None:
        return None
    return getattr(node, f"_saved_{name}", None)


_ROOT = "conformance.root"
_MOST_NODES = 64


class Graphs:
    """Numbers graphs by their roots, the nodes where backwards begin, and finds those that are in another one."""

    def __init__(self) -> None:
        self._count = 0
        self._alive = weakref.WeakSet[_Root]()

    def number(self, root: Any) -> int:
        """The number of the graph with this root, a new one at first sight. A leaf, which is None, is always new."""
        # Python's object for a node comes and goes; its metadata stay with the node.
        known = _Root(self._count) if root is None else root.metadata.setdefault(_ROOT, _Root(self._count))
        self._alive.add(known)
        self._count = max(self._count, known.number + 1)
        return known.number

    def contained(self, root: Any, through: Callable[[Any], bool] = lambda _: True) -> list[int]:
        """The earlier graphs that this one goes through again, near its root. through: the nodes to look behind."""
        found: set[int] = set()
        # Walking takes long, and mostly there is nothing to find: a graph lives no longer than its loss.
        queue = deque([root] if root is not None and len(self._alive) > 1 else [])
        for _ in range(_MOST_NODES):
            if not queue:
                break
            here = queue.popleft()
            following = [node for node, _ in here.next_functions if node is not None] if through(here) else []
            found.update(node.metadata[_ROOT].number for node in following if _ROOT in node.metadata)
            queue.extend(following)
        return sorted(found)


class _Root:
    __slots__ = ("__weakref__", "number")

    def __init__(self, number: int) -> None:
        self.number = number


_SCALE = "conformance.loss_scale"
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
            node.metadata[_SCALE] = factor


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
        factor: float | None = node.metadata.get(_SCALE) or (_factor(node, scalers) if name == _PRODUCT else None)
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


#: What tells a loss from another one is in the first windows, and reading takes time.
_MOST_FORWARDS, _MOST_VALUES = 32, 64


class Reached(NamedTuple):
    """A forward that a backward reached: what the model put out, and the loss's gradient with respect to it; [] where
    they were not read."""

    outputs: list[Number]
    gradients: list[Number]


class Flow:
    """Tracks which forwards a backward reaches, by hooks on their outputs.

    The graph owns the hooks; nothing here keeps a graph alive.
    """

    def __init__(self) -> None:
        self._handles: list[RemovableHandle] = []
        self._backwards = Nested[dict[int, Reached]]()
        self.backward = self._backwards.inside
        """Within `backward(reached)` this thread goes backward; `reached` grows by the forwards that it reaches, by
        their numbers."""

    def follow(self, forward: int, output: Any) -> None:
        """Notice when a backward reaches `output` of the forward with this number."""

        outputs = _read(output) if forward < _MOST_FORWARDS else []

        def reached(gradients: Any) -> None:
            read = _read(gradients[0]) if outputs and len(gradients) == 1 else []
            for forwards in self._backwards:
                forwards[forward] = Reached(outputs, read) if len(read) == len(outputs) else Reached([], [])

        self._handles = [handle for handle in self._handles if handle.hooks_dict_ref() is not None]
        for tensor in tensors_in(output):
            if tensor.grad_fn is not None:
                self._handles.append(tensor.grad_fn.register_prehook(harmless(reached)))

    def forget(self) -> None:
        """Remove all hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()


def _read(tensor: Any) -> list[Number]:
    """The elements of a small, ordinary tensor; [] of any other."""
    if type(tensor) is not torch.Tensor or tensor.layout is not torch.strided or not tensor.is_floating_point():
        return []
    if tensor.numel() > _MOST_VALUES or torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return []
    return elements(tensor)
