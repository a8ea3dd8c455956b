"""Backward passes that accumulate gradients, seen where autograd calls its engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.hooks import RemovableHandle

from conformance.trace.seams.patching import replaced
from conformance.trace.state.loss_scale import carried

if TYPE_CHECKING:
    from conformance.trace.recorder import Recorder

_ROOT = "conformance.root"


class Flow:
    """Knows which forwards a backward flows through, by hooks on what the forwards returned.

    The hooks are in the graph and go with it: nothing here keeps one alive.

    used: is told of each of them.
    """

    def __init__(self, used: Callable[[int], None]) -> None:
        self._used = used
        self._handles: list[RemovableHandle] = []
        self._through: set[int] = set()

    def follow(self, forward: int, output: Any) -> None:
        """Have it noticed when a backward reaches `output` of the forward with this number."""

        def reached(_gradients: Any) -> None:
            self._through.add(forward)
            self._used(forward)

        self._handles = [handle for handle in self._handles if handle.hooks_dict_ref() is not None]
        for tensor in _tensors(output):
            if tensor.grad_fn is not None:
                self._handles.append(tensor.grad_fn.register_prehook(reached))

    def begin(self) -> None:
        """A backward begins."""
        self._through.clear()

    def through(self) -> list[int]:
        """The forwards that were reached since then."""
        return sorted(self._through)

    def forget(self) -> None:
        """Take off all hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()


class Backwards:
    """Notes `backward_begin` and `backward_end`, and `autograd_grad`."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._count = 0
        self._roots = 0

    def run(self, original: Callable[..., Any], tensors: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        """Around autograd's call of its engine. Without `accumulate_grad` it is `torch.autograd.grad`'s; a backward
        within a backward belongs to checkpointing."""
        recorder = self._recorder
        if recorder.is_doing("backward"):
            return original(tensors, *args, **kwargs)
        if not kwargs.get("accumulate_grad"):
            recorder.flow.begin()
            result = original(tensors, *args, **kwargs)
            if recorder.flow.through():
                recorder.note("autograd_grad", forwards=recorder.flow.through())
            return result
        recorder.gradients.look()
        root = _node(tensors)
        number, self._count = self._count, self._count + 1
        recorder.note(
            "backward_begin",
            backward=number,
            root=self._number(root),
            syncs=recorder.wrappers.syncs,
            gradients=recorder.gradients.state(),
        )
        recorder.flow.begin()
        # Before the engine frees what the graph has saved.
        scaled = carried(root, (scaler.get_scale() for scaler in recorder.known("scaler")))
        with recorder.doing("backward"):
            result = original(tensors, *args, **kwargs)
        recorder.note("backward_end", backward=number, forwards=recorder.flow.through(), scaled=scaled)
        recorder.gradients.known()
        return result

    def _number(self, root: Any) -> int:
        # Python's object for a node comes and goes; its metadata stay with the node.
        number: int = self._roots if root is None else root.metadata.setdefault(_ROOT, self._roots)
        self._roots = max(self._roots, number + 1)
        return number


def _node(tensors: Sequence[Any]) -> Any:
    """The node of the graph where a backward begins, if it is no leaf. `tensors` may also be `GradientEdge`s."""
    nodes = (tensor.grad_fn if isinstance(tensor, torch.Tensor) else tensor.node for tensor in tensors)
    return next((node for node in nodes if node is not None), None)


def _tensors(output: Any) -> Iterator[torch.Tensor]:
    if isinstance(output, torch.Tensor):
        yield output
    elif isinstance(output, dict):
        for value in output.values():
            yield from _tensors(value)
    elif isinstance(output, list | tuple):
        for value in output:
            yield from _tensors(value)


@contextmanager
def observing_backwards(backwards: Backwards) -> Iterator[None]:
    """Have backward passes noted."""
    with replaced(torch.autograd, "_engine_run_backward", backwards.run):
        yield
