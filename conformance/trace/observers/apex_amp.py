"""Observes NVIDIA apex: `amp.initialize`, `amp.scale_loss` and skipped steps."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from conformance.trace.emit import Recording, note_skip
from conformance.trace.seams.guarding import harmless
from conformance.trace.seams.patching import Seams, replaced, replaced_inside, when_imported
from conformance.trace.state.graphs import mark
from conformance.trace.tensor_values import number

SCALING, INITIALIZING = "apex.amp.handle", "apex.amp.frontend"


@dataclass(frozen=True)
class _Region:
    """A `scale_loss` region: the loss number `loss`, the `scale` at its start, and apex's own `state`."""

    state: Any
    loss: int
    scale: float | None
    optimizers: list[Any]
    delays_unscaling: bool

    @property
    def fields(self) -> dict[str, Any]:
        """The fields that its two events share."""
        return {
            "delay_unscale": self.delays_unscaling,
            "optimizers": len(self.optimizers),
            "scale": None if self.scale is None else number(self.scale),
        }


def observe(recording: Recording) -> Seams:
    """Records apex's `initialize` and `scale_loss`, also if a trainer imported them by name, and skipped steps."""
    skips: set[Callable[..., Any]] = set()

    def initialize(original: Callable[..., Any], models: Any, optimizers: Any, *args: Any, **kwargs: Any) -> Any:
        # An enabled `amp.initialize` calls `_initialize`.
        result = original(models, optimizers, *args, **kwargs)
        recording.note("apex_initialize", models=len(_listed(models)), optimizers=len(_listed(optimizers)))
        return result

    def scale_loss(original: Callable[..., Iterator[Any]], *args: Any, **kwargs: Any) -> Iterator[Any]:
        # The generator of `amp.scale_loss` stashes gradients at its start, and unscales at its end. It runs after this
        # call, so each part of the recorder needs its own guard.
        region = harmless(begin)(original, args, kwargs)
        with contextmanager(original)(*args, **kwargs) as scaled_loss:
            harmless(enter)(region, scaled_loss)
            try:
                yield scaled_loss
            finally:
                harmless(recording.look, __name__)()
        harmless(leave)(region)

    def begin(original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Region:
        given = inspect.signature(original).bind(*args, **kwargs)
        given.apply_defaults()
        state, loss = inspect.unwrap(original).__globals__["_amp_state"], given.arguments["loss_id"]
        optimizers = _listed(given.arguments["optimizers"])
        recording.look()
        return _Region(state, loss, _scale(state, loss), optimizers, bool(given.arguments["delay_unscale"]))

    def enter(region: _Region, scaled_loss: Any) -> None:
        recording.accounted()
        if region.scale is not None:
            mark(scaled_loss, region.scale)
        recording.note("scale_loss_enter", **region.fields)

    def leave(region: _Region) -> None:
        recording.accounted()
        after = _scale(region.state, region.loss)
        recording.note("scale_loss_exit", **region.fields, scale_after=None if after is None else number(after))
        if region.scale is not None:
            for optimizer in region.optimizers:
                observe_skip(optimizer, region.scale)

    def observe_skip(optimizer: Any, scale: float) -> None:
        # To skip a step, apex has replaced the optimizer's next step by a function that does nothing.
        skip = optimizer.step
        if not optimizer._amp_stash.already_patched or skip in skips:
            return

        def noting_skip(*args: Any, **kwargs: Any) -> Any:
            # This puts the real step back.
            result = skip(*args, **kwargs)
            skips.discard(noting_skip)
            harmless(note_skip, __name__)(recording, optimizer, number(scale))
            return result

        skips.add(noting_skip)
        optimizer.step = noting_skip

    yield when_imported(SCALING, lambda module: [replaced_inside(module.scale_loss, scale_loss)])
    yield when_imported(INITIALIZING, lambda module: [replaced(module, "_initialize", initialize)])


def _listed(one_or_several: Any) -> list[Any]:
    if one_or_several is None:
        return []
    return list(one_or_several) if isinstance(one_or_several, list | tuple) else [one_or_several]


def _scale(state: Any, loss_id: int) -> float | None:
    """The loss scale that apex keeps for a loss; None while it is disabled or not initialised."""
    properties = getattr(state, "opt_properties", None)
    if properties is None or not properties.enabled:
        return None
    return float(state.loss_scalers[loss_id].loss_scale())
