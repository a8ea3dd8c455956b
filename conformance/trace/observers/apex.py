"""NVIDIA apex: `amp.initialize`, `amp.scale_loss`, and steps that it skips."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any

from conformance.trace.observers.scaler import note_skip
from conformance.trace.seams.importing import when_imported
from conformance.trace.seams.patching import replaced, replaced_inside
from conformance.trace.state.loss_scale import mark
from conformance.trace.values import number

if TYPE_CHECKING:
    from conformance.trace.recorder import Recorder

SCALING, INITIALIZING = "apex.amp.handle", "apex.amp.frontend"


class ApexCalls:
    """Notes calls of apex.amp, of those trainers too that imported its functions by name."""

    def __init__(self, recorder: Recorder, stack: ExitStack) -> None:
        self._recorder = recorder
        self._stack = stack
        self._skips: set[Callable[..., Any]] = set()

    def observe_scaling(self, module: ModuleType) -> None:
        """To be called with the module that has `scale_loss`."""
        self._stack.enter_context(replaced_inside(module.scale_loss, self.scale_loss))

    def observe_initializing(self, module: ModuleType) -> None:
        """To be called with the module that has `initialize`, which leaves the work to `_initialize` if enabled."""
        self._stack.enter_context(replaced(module, "_initialize", self.initialize))

    def initialize(self, original: Callable[..., Any], models: Any, optimizers: Any, *args: Any, **kwargs: Any) -> Any:
        """Around what `amp.initialize` calls."""
        result = original(models, optimizers, *args, **kwargs)
        self._recorder.note("apex_initialize", models=len(_listed(models)), optimizers=len(_listed(optimizers)))
        return result

    def scale_loss(self, original: Callable[..., Iterator[Any]], *args: Any, **kwargs: Any) -> Iterator[Any]:
        """Around the generator of `amp.scale_loss`: it stashes gradients at the beginning, and unscales at the end."""
        recorder = self._recorder
        given = inspect.signature(original).bind(*args, **kwargs)
        given.apply_defaults()
        state, loss = inspect.unwrap(original).__globals__["_amp_state"], given.arguments["loss_id"]
        optimizers = _listed(given.arguments["optimizers"])
        scale = _scale(state, loss)
        fields = {
            "delay_unscale": bool(given.arguments["delay_unscale"]),
            "optimizers": len(optimizers),
            "scale": None if scale is None else number(scale),
        }
        recorder.gradients.look()
        with contextmanager(original)(*args, **kwargs) as scaled_loss:
            recorder.gradients.known()
            if scale is not None:
                mark(scaled_loss, scale)
            recorder.note("scale_loss_enter", **fields)
            try:
                yield scaled_loss
            finally:
                recorder.gradients.look()
        recorder.gradients.known()
        after = _scale(state, loss)
        recorder.note("scale_loss_exit", **fields, scale_after=None if after is None else number(after))
        if scale is not None:
            for optimizer in optimizers:
                self._observe_skip(optimizer, scale)

    def _observe_skip(self, optimizer: Any, scale: float) -> None:
        """Have it noted when the step is asked for that apex has put one that does nothing in the place of."""
        skip = optimizer.step
        if not optimizer._amp_stash.already_patched or skip in self._skips:
            return

        def noting_skip(*args: Any, **kwargs: Any) -> Any:
            # It puts the real step back.
            result = skip(*args, **kwargs)
            self._skips.discard(noting_skip)
            note_skip(self._recorder, optimizer, number(scale))
            return result

        self._skips.add(noting_skip)
        optimizer.step = noting_skip


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


@contextmanager
def observing_apex(recorder: Recorder) -> Iterator[None]:
    """Have apex's `initialize` and `scale_loss` noted."""
    with ExitStack() as stack:
        calls = ApexCalls(recorder, stack)
        acts = {SCALING: calls.observe_scaling, INITIALIZING: calls.observe_initializing}
        stack.enter_context(when_imported(acts))
        yield
