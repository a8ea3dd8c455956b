"""GradScaler: steps that it skipped, and updates of the scale."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch

from conformance.trace.events import number
from conformance.trace.patching import replaced

if TYPE_CHECKING:
    from conformance.trace.recorder import Recorder


class ScalerCalls:
    """Notes `skip` and `update` of enabled scalers. A subclass that calls super() is noted once."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._stepping = False
        self._updating = False

    def step(
        self,
        original: Callable[..., Any],
        scaler: torch.amp.GradScaler,
        optimizer: torch.optim.Optimizer,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Around `GradScaler.step`."""
        if self._stepping or not scaler.is_enabled():
            return original(scaler, optimizer, *args, **kwargs)
        recorder = self._recorder
        steps_before = recorder.steps
        recorder.scale = number(scaler.get_scale())
        self._stepping = True
        try:
            result = original(scaler, optimizer, *args, **kwargs)
        finally:
            self._stepping = False
            scale, recorder.scale = recorder.scale, None
        parameters = recorder.watched.find(optimizer)
        if recorder.steps == steps_before and parameters is not None:
            gradients = recorder.watched.gradients(parameters)
            recorder.note(
                "skip",
                forwards=recorder.forwards,
                scale=scale,
                gradients_finite=not any(isinstance(gradient, str) for gradient in gradients),
                gradients=gradients,
                weights=recorder.watched.weights(parameters),
            )
        return result

    def update(self, original: Callable[..., Any], scaler: torch.amp.GradScaler, *args: Any, **kwargs: Any) -> Any:
        """Around `GradScaler.update`."""
        if self._updating or not scaler.is_enabled():
            return original(scaler, *args, **kwargs)
        before = number(scaler.get_scale())
        self._updating = True
        try:
            result = original(scaler, *args, **kwargs)
        finally:
            self._updating = False
        self._recorder.note(
            "update",
            scale_before=before,
            scale_after=number(scaler.get_scale()),
            growth_factor=number(scaler.get_growth_factor()),
            backoff_factor=number(scaler.get_backoff_factor()),
            growth_interval=scaler.get_growth_interval(),
        )
        return result


@contextmanager
def observing_scalers(recorder: Recorder) -> Iterator[None]:
    """Have the calls of GradScaler noted, and of each subclass that has its own `step` or `update`."""
    calls = ScalerCalls(recorder)
    with ExitStack() as stack:
        for owner in _with_subclasses(torch.amp.GradScaler):
            for name, around in (("step", calls.step), ("update", calls.update)):
                if name in vars(owner):
                    stack.enter_context(replaced(owner, name, around))
        yield


def _with_subclasses(owner: type[Any]) -> Iterator[type[Any]]:
    yield owner
    for subclass in owner.__subclasses__():
        yield from _with_subclasses(subclass)
