"""GradScaler: scaling, unscaling, steps that it skipped, and updates of the scale."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch

from conformance.trace.seams.patching import replaced, with_subclasses
from conformance.trace.state.loss_scale import mark
from conformance.trace.values import Number, number

if TYPE_CHECKING:
    from conformance.trace.recorder import Recorder

Original = Callable[..., Any]


class ScalerCalls:
    """Notes what enabled scalers do. A subclass that calls super() is noted once."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._running: set[str] = set()

    def scale(self, original: Original, scaler: torch.amp.GradScaler, outputs: Any) -> Any:
        """Around `GradScaler.scale`."""
        if not self._begins("scale", scaler):
            return original(scaler, outputs)
        with self._during("scale"):
            result = original(scaler, outputs)
        scale = scaler.get_scale()
        mark(result, scale)
        self._recorder.note("loss_scaled", scaler=self._recorder.number("scaler", scaler), scale=number(scale))
        return result

    def unscale(self, original: Original, scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer) -> Any:
        """Around `GradScaler.unscale_`."""
        recorder = self._recorder
        if not self._begins("unscale", scaler) or recorder.watched.find(optimizer) is None:
            return original(scaler, optimizer)
        recorder.gradients.look()
        with self._during("unscale"):
            result = original(scaler, optimizer)
        recorder.note(
            "unscale",
            scaler=recorder.number("scaler", scaler),
            optimizer=recorder.optimizer(optimizer),
            scale=number(scaler.get_scale()),
            implicit="step" in self._running,
            found_inf=_found_inf(scaler, optimizer),
        )
        recorder.gradients.known()
        return result

    def step(
        self,
        original: Original,
        scaler: torch.amp.GradScaler,
        optimizer: torch.optim.Optimizer,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Around `GradScaler.step`."""
        recorder = self._recorder
        if not self._begins("step", scaler):
            return original(scaler, optimizer, *args, **kwargs)
        steps_before = recorder.steps
        scale = number(scaler.get_scale())
        if recorder.watched.find(optimizer) is not None:
            recorder.gradients.look()
            recorder.note(
                "scaler_step",
                scaler=recorder.number("scaler", scaler),
                optimizer=recorder.optimizer(optimizer),
                scale=scale,
                state=recorder.watched.state(optimizer),
            )
        recorder.scale = scale
        try:
            with self._during("step"), recorder.doing("step"):
                result = original(scaler, optimizer, *args, **kwargs)
        finally:
            recorder.scale = None
        if recorder.steps == steps_before:
            note_skip(recorder, optimizer, scale)
        return result

    def update(self, original: Original, scaler: torch.amp.GradScaler, *args: Any, **kwargs: Any) -> Any:
        """Around `GradScaler.update`."""
        if not self._begins("update", scaler):
            return original(scaler, *args, **kwargs)
        before = number(scaler.get_scale())
        with self._during("update"):
            result = original(scaler, *args, **kwargs)
        self._recorder.note(
            "update",
            scale_before=before,
            scale_after=number(scaler.get_scale()),
            growth_factor=number(scaler.get_growth_factor()),
            backoff_factor=number(scaler.get_backoff_factor()),
            growth_interval=scaler.get_growth_interval(),
            scaler=self._recorder.number("scaler", scaler),
        )
        return result

    def _begins(self, call: str, scaler: torch.amp.GradScaler) -> bool:
        return call not in self._running and scaler.is_enabled()

    @contextmanager
    def _during(self, call: str) -> Iterator[None]:
        self._running.add(call)
        try:
            yield
        finally:
            self._running.remove(call)


def note_skip(recorder: Recorder, optimizer: torch.optim.Optimizer, scale: Number) -> None:
    """A step was asked for and not taken, because gradients overflowed at ``scale``."""
    parameters = recorder.watched.find(optimizer)
    if parameters is None:
        return
    recorder.progress.stepped()
    gradients = recorder.watched.gradients(parameters)
    recorder.note(
        "skip",
        forwards=recorder.forwards,
        scale=scale,
        gradients_finite=None if gradients is None else not any(isinstance(gradient, str) for gradient in gradients),
        gradients=gradients,
        weights=recorder.watched.weights(parameters),
        optimizer=recorder.optimizer(optimizer),
        state=recorder.watched.state(optimizer),
    )
    recorder.gradients.known()


def _found_inf(scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer) -> bool | None:
    found = scaler._per_optimizer_states.get(id(optimizer), {}).get("found_inf_per_device")
    return any(bool(flag) for flag in found.values()) if found else None


@contextmanager
def observing_scalers(recorder: Recorder) -> Iterator[None]:
    """Have the calls of GradScaler noted, and of each subclass that has its own."""
    calls = ScalerCalls(recorder)
    around = {"scale": calls.scale, "unscale_": calls.unscale, "step": calls.step, "update": calls.update}
    with ExitStack() as stack:
        for owner in with_subclasses(torch.amp.GradScaler):
            for name in around.keys() & vars(owner).keys():
                stack.enter_context(replaced(owner, name, around[name]))
        yield
