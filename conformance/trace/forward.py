"""Forwards of the task's model, and which samples went in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook

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


@contextmanager
def observing_forwards(recorder: Recorder, x: list[list[float]]) -> Iterator[None]:
    """Have forwards of the task's model noted.

    The hook is torch's global one: a hook on the model would be copied and pickled with it.
    """
    rows = Rows(x)

    def before(module: torch.nn.Module, args: tuple[Any, ...]) -> None:
        if not (module.training and torch.is_grad_enabled() and recorder.watched.is_model(module)):
            return
        recorder.look_for_horovod()
        seen = rows.of(args[0]) if args and isinstance(args[0], torch.Tensor) else []
        forward, recorder.forwards = recorder.forwards, recorder.forwards + 1
        recorder.note("forward", forward=forward, rows=seen)

    handle = register_module_forward_pre_hook(before)
    try:
        yield
    finally:
        handle.remove()
