"""Tracks the graphs where backwards start, the scale of a loss, and the forwards that a backward reaches."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils.hooks import RemovableHandle

from conformance.trace.seams.guarding import harmless
from conformance.trace.state.nested import Nested
from conformance.trace.tensor_values import Number, elements, tensors_in


def saved(node: Any, name: str) -> Any:
    """The value that `node` saved under this name. None if it saved none, or if hooks keep it: they may recompute it as
    checkpointing does, read it from a disk, or return it only once. Hooks never keep Python numbers."""
    # Torch 2.6 does not show hooks.
    if getattr(getattr(node, f"_raw_saved_{name}", None), "unpack_hook", None) is not None:
        return None
    return getattr(node, f"_saved_{name}", None)


_ROOT = "conformance.root"
_MOST_NODES = 64


class Graphs:
    """Numbers graphs by their roots, the nodes where backwards start, and finds graphs inside others."""

    def __init__(self) -> None:
        self._count = 0
        self._alive = weakref.WeakSet[_Root]()

    def number(self, root: Any) -> int:
        """The number of the graph with this root, new at first sight. None stands for a leaf, and is always new."""
        # Python's object for a node is temporary; its metadata stay with the node.
        known = _Root(self._count) if root is None else root.metadata.setdefault(_ROOT, _Root(self._count))
        self._alive.add(known)
        self._count = max(self._count, known.number + 1)
        return known.number

    def contained(self, root: Any, through: Callable[[Any], bool] = lambda _: True) -> list[int]:
        """The earlier graphs that this one traverses again, near its root. through: the nodes to search behind."""
        found: set[int] = set()
        # The search takes long and mostly finds nothing, because a graph lives only as long as its loss.
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
LINEAR = {
    f"{operation}Backward{variant}"
    for operation in (
        *("Add", "Sub", "Mul", "Div", "Neg", "Sum", "Mean", "Stack", "Cat"),
        *("ToCopy", "Clone", "View", "Reshape", "Squeeze", "Unsqueeze", "Select", "Unbind", "Expand", "Alias"),
    )
    for variant in (0, 1)
}
"""Operations on a loss between `scale` and `backward`: sums, division by a length, casts."""


def mark(tensors: Any, factor: float) -> None:
    """Remember that these tensors (one, or lists of them) are multiplied by `factor`."""
    for tensor in tensors_in(tensors):
        if tensor.grad_fn is not None:
            node: Any = tensor.grad_fn
            node.metadata[_SCALE] = factor


def is_scaling(node: Any) -> bool:
    """Whether a node multiplies by a scale that `mark` has set."""
    return _SCALE in node.metadata


def carried(root: Any, scalers: Sequence[torch.amp.GradScaler]) -> float | None:
    """The product of the scales in a loss, given by its node of the graph; None if there are none.

    A scale is set by `mark`, or by hand as a factor equal to the scale of one of `scalers`.
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
        if name in LINEAR:
            queue.extend(following for following, _ in node.next_functions if following is not None)
    return product


def _factor(node: Any, scalers: Sequence[torch.amp.GradScaler]) -> float | None:
    """The factor of this product that is the scale of one of `scalers`."""
    if not scalers:
        return None
    # A factor of 1 proves no scaling.
    scales = {scaler.get_scale() for scaler in scalers} - {1.0}
    try:
        found = [saved(node, name) for name in ("self", "other")]
    except RuntimeError:
        # An earlier backward freed the graph, so this one will fail by itself.
        return None
    factors = [tensor.item() for tensor in found if isinstance(tensor, torch.Tensor) and tensor.numel() == 1]
    return next((factor for factor in factors if factor in scales), None)


#: The first windows suffice to distinguish losses, and reading takes time.
_MOST_FORWARDS, _MOST_VALUES = 32, 64


class Reached(NamedTuple):
    """A forward that a backward reached: the model's first outputs, and the loss's gradients with respect to them; []
    if not read."""

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
        """`backward(reached)`: a context for a backward of this thread, which adds the forwards that it reaches to
        `reached`, by number."""

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
    """The first elements of an ordinary tensor; [] for any other."""
    if type(tensor) is not torch.Tensor or tensor.layout is not torch.strided or not tensor.is_floating_point():
        return []
    functorch = torch._C._functorch
    if functorch.is_functorch_wrapped_tensor(tensor) or functorch.is_legacy_batchedtensor(tensor):
        return []
    return elements(tensor.flatten()[:_MOST_VALUES])
