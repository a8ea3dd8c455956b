"""Clipping of gradients by torch's functions, and the norms that are computed without clipping."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import GeneratorType
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.utils import clip_grad

from conformance.trace.seams.patching import replaced_inside
from conformance.trace.values import number

if TYPE_CHECKING:
    from conformance.trace.recorder import Recorder

Original = Callable[..., Any]


class Clipping:
    """Notes the outermost call: clipping by norm is itself made of a norm and of scaling by it."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._is_running = False

    def by_norm(
        self, original: Original, parameters: Any, max_norm: float, norm_type: float = 2.0, *args: Any, **kwargs: Any
    ) -> Any:
        """Around `clip_grad_norm_`."""
        return self._clip(original, parameters, (max_norm, norm_type, *args), kwargs, kind="norm", norm_type=norm_type)

    def with_norm(
        self, original: Original, parameters: Any, max_norm: float, total_norm: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Around `clip_grads_with_norm_`."""
        return self._clip(original, parameters, (max_norm, total_norm, *args), kwargs, kind="norm", norm=total_norm)

    def by_value(self, original: Original, parameters: Any, clip_value: float, *args: Any, **kwargs: Any) -> Any:
        """Around `clip_grad_value_`."""
        return self._clip(original, parameters, (clip_value, *args), kwargs, kind="value")

    def norm(self, original: Original, tensors: Any, *args: Any, **kwargs: Any) -> Any:
        """Around `get_total_norm`."""
        if self._is_running:
            return original(tensors, *args, **kwargs)
        tensors, given = _kept(tensors)
        self._recorder.gradients.look()
        result = original(given, *args, **kwargs)
        owners = self._recorder.watched.owners(tensors)
        if owners:
            self._recorder.note("norm", norm=number(float(result)), parameters=owners)
        return result

    def _clip(
        self,
        original: Original,
        parameters: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        kind: str,
        norm_type: float | None = None,
        norm: Any = None,
    ) -> Any:
        if self._is_running:
            return original(parameters, *args, **kwargs)
        recorder = self._recorder
        parameters, given = _kept(parameters)
        numbers = recorder.watched.numbers(parameters)
        recorder.gradients.look()
        gradients = recorder.watched.gradients(recorder.watched.current, only=numbers) if numbers else None
        self._is_running = True
        try:
            result = original(given, *args, **kwargs)
        finally:
            self._is_running = False
        # Of no parameters at all: a generator of them was used up.
        if numbers or not parameters:
            total = result if norm is None else norm
            recorder.note(
                "clip",
                kind=kind,
                threshold=number(float(args[0])),
                norm_type=None if norm_type is None else number(float(norm_type)),
                norm=None if total is None else number(float(total)),
                parameters=numbers,
                gradients=gradients,
            )
            recorder.gradients.known()
        return result


def _kept(tensors: Any) -> tuple[list[torch.Tensor], Any]:
    """The tensors of a list or of a single one, and what to pass on: of a generator, another one."""
    if isinstance(tensors, torch.Tensor):
        return [tensors], tensors
    kept = list(tensors)
    return kept, (tensor for tensor in kept) if isinstance(tensors, GeneratorType) else kept


@contextmanager
def observing_clipping(recorder: Recorder) -> Iterator[None]:
    """Have clipping noted."""
    clipping = Clipping(recorder)
    with ExitStack() as stack:
        stack.enter_context(replaced_inside(clip_grad.clip_grad_norm_, clipping.by_norm))
        stack.enter_context(replaced_inside(clip_grad.clip_grad_value_, clipping.by_value))
        stack.enter_context(replaced_inside(clip_grad._clip_grads_with_norm_, clipping.with_norm))
        stack.enter_context(replaced_inside(clip_grad._get_total_norm, clipping.norm))
        yield
