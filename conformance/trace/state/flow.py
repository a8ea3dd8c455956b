"""Which forwards a backward reaches, and with what gradients."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch.utils.hooks import RemovableHandle

from conformance.trace.seams.guarding import harmless
from conformance.trace.state.nested import Nested
from conformance.trace.values import Number, elements, tensors_in

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
