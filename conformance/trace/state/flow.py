"""Which forwards a backward flows through."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils.hooks import RemovableHandle

from conformance.trace.values import tensors_in


class Flow:
    """Knows which forwards a backward flows through, by hooks on what the forwards returned.

    The hooks are in the graph and go with it: nothing here keeps one alive.

    used: called with the number of each of them.
    """

    def __init__(self, used: Callable[[int], None]) -> None:
        self._used = used
        self._handles: list[RemovableHandle] = []
        self._reached: set[int] = set()

    def follow(self, forward: int, output: Any) -> None:
        """Have it noticed when a backward reaches `output` of the forward with this number."""

        def reached(_gradients: Any) -> None:
            self._reached.add(forward)
            self._used(forward)

        self._handles = [handle for handle in self._handles if handle.hooks_dict_ref() is not None]
        for tensor in tensors_in(output):
            if tensor.grad_fn is not None:
                self._handles.append(tensor.grad_fn.register_prehook(reached))

    def begin(self) -> None:
        """A backward begins."""
        self._reached.clear()

    @property
    def reached(self) -> list[int]:
        """The forwards that were reached since then."""
        return sorted(self._reached)

    def forget(self) -> None:
        """Take off all hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
