"""Forwards of the watched model, and which samples went in."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch

from conformance.trace.seams.patching import replaced

if TYPE_CHECKING:
    from conformance.trace.recorder import Recorder


class Rows:
    """Finds input rows among the samples'; in the dtype that they come in, for a trainer may cast its
    inputs."""

    def __init__(self, x: list[list[float]]) -> None:
        self._distinct = torch.tensor(list(dict.fromkeys(map(tuple, x))), dtype=torch.float64)
        self._index: dict[torch.dtype, dict[tuple[float, ...], int]] = {}

    def of(self, inputs: torch.Tensor) -> list[int | None]:
        """The index of each row of `inputs` (..., features) among the distinct rows; [] for another shape."""
        features = self._distinct.shape[-1]
        if inputs.dim() == 0 or inputs.shape[-1] != features:
            return []
        if inputs.dtype not in self._index:
            known = self._distinct.to(inputs.dtype).double().tolist()
            self._index[inputs.dtype] = {tuple(row): index for index, row in reversed(list(enumerate(known)))}
        index = self._index[inputs.dtype]
        rows = inputs.detach().double().reshape(-1, features).tolist()
        return [index.get(tuple(row)) for row in rows]


class Forwards:
    """Notes training forwards, and has it known when a backward flows through one.

    They are seen at the `forward` of the watched models' classes. Hooks on a model would be copied and pickled with
    it; torch's global ones slow down the call of every module there is.
    """

    def __init__(self, recorder: Recorder, x: list[list[float]] | None) -> None:
        self._recorder = recorder
        self._rows = None if x is None else Rows(x)
        self._stack = ExitStack()
        self._observed: set[type[torch.nn.Module]] = set()
        self._running: set[int] = set()
        self._is_on = False

    def __enter__(self) -> None:
        self._is_on = True
        # The task's model is one, and what it is copied into.
        if self._rows is not None:
            self.observe(torch.nn.Linear)
        for model in self._recorder.watched.models():
            self.observe(type(model))

    def __exit__(self, *error: object) -> None:
        self._is_on = False
        self._stack.close()
        self._observed.clear()
        self._recorder.flow.forget()

    def observe(self, kind: type[torch.nn.Module]) -> None:
        """Observe forwards of watched models of this class."""
        owner = next(owner for owner in kind.__mro__ if "forward" in vars(owner))
        if self._is_on and owner not in self._observed:
            self._observed.add(owner)
            self._stack.enter_context(replaced(owner, "forward", self._run))

    def _run(self, original: Callable[..., Any], module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        recorder = self._recorder
        is_training = module.training and torch.is_grad_enabled()
        # Within a backward a forward is computed once more for what it did not keep.
        if not is_training or recorder.is_doing("backward") or not recorder.watched.is_model(module):
            return original(module, *args, **kwargs)
        # A class that is observed may call the forward of its base, which may be observed too.
        if id(module) in self._running:
            return original(module, *args, **kwargs)
        number = self._note(module, args)
        self._running.add(id(module))
        try:
            output = original(module, *args, **kwargs)
        finally:
            self._running.remove(id(module))
        recorder.flow.follow(number, output)
        return output

    def _note(self, module: torch.nn.Module, args: tuple[Any, ...]) -> int:
        recorder = self._recorder
        # The gradients of a large model are many to look at; the backward will.
        if recorder.watched.is_readable:
            recorder.gradients.look()
        if recorder.forwards == 0:
            recorder.note("start", weights=recorder.watched.weights())
        rows = self._rows.of(args[0]) if self._rows and args and isinstance(args[0], torch.Tensor) else []
        window = recorder.progress.window
        number, recorder.forwards = recorder.forwards, recorder.forwards + 1
        recorder.progress.forward(rows, number)
        wrapper = recorder.wrappers.enter_model()
        recorder.note(
            "forward",
            forward=number,
            rows=rows,
            wrapper=None if wrapper is None else type(wrapper).__name__,
            syncs=recorder.wrappers.syncs,
            computes=_computes(module, args),
            weights=None if recorder.progress.window == window else recorder.watched.weights(),
        )
        return number


def _computes(module: torch.nn.Module, args: tuple[Any, ...]) -> str | None:
    """The dtype that a linear model computes in; None where its forward is not torch's, and may cast."""
    if not isinstance(module, torch.nn.Linear) or type(module).forward is not torch.nn.Linear.forward:
        return None
    inputs = args[0] if args else None
    if not isinstance(inputs, torch.Tensor) or not inputs.is_floating_point():
        return None
    kind = inputs.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else inputs.dtype
    return str(dtype).removeprefix("torch.")
