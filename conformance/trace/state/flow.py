"""Which forwards a backward reaches."""

from __future__ import annotations

from typing import Any

from torch.utils.hooks import RemovableHandle

from conformance.trace.values import tensors_in


class Flow:
    """Tracks which forwards a backward reaches, by hooks on their outputs.

    The graph owns the hooks; nothing here keeps a graph alive.
    """

    def __init__(self) -> None:
        self._handles: list[RemovableHandle] = []
        self._reached: set[int] = set()

    def follow(self, forward: int, output: Any) -> None:
        """Notice when a backward reaches `output` of the forward with this number."""

        def reached(_gradients: Any) -> None:
            self._reached.add(forward)

        self._handles = [handle for handle in self._handles if handle.hooks_dict_ref() is not None]
        for tensor in tensors_in(output):
            if tensor.grad_fn is not None:
                self._handles.append(tensor.grad_fn.register_prehook(reached))

    def begin(self) -> None:
        """A backward begins."""
        self._reached.clear()

    @property
    def reached(self) -> list[int]:
        """The forwards reached since `begin`."""
        return sorted(self._reached)

    def forget(self) -> None:
        """Remove all hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
