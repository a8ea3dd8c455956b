"""NVIDIA apex: `amp.initialize` and `amp.scale_loss`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any

from conformance.trace.events import number
from conformance.trace.importing import when_imported
from conformance.trace.loss_scale import mark
from conformance.trace.patching import replaced, replaced_inside

if TYPE_CHECKING:
    from conformance.trace.recorder import Recorder

SCALING, INITIALIZING = "apex.amp.handle", "apex.amp.frontend"


class ApexCalls:
    """Notes calls of apex.amp, of those trainers too that imported its functions by name."""

    def __init__(self, recorder: Recorder, stack: ExitStack) -> None:
        self._recorder = recorder
        self._stack = stack

    def observe_scaling(self, module: ModuleType) -> None:
        """To be called with the module that has `scale_loss`."""
        self._stack.enter_context(replaced_inside(module.scale_loss, self.scale_loss))

    def observe_initializing(self, module: ModuleType) -> None:
        """To be called with the module that has `initialize`, which leaves the work to `_initialize` if enabled."""
        self._stack.enter_context(replaced(module, "_initialize", self.initialize))

    def initialize(self, original: Callable[..., Any], models: Any, optimizers: Any, *args: Any, **kwargs: Any) -> Any:
        """Around what `amp.initialize` calls."""
        result = original(models, optimizers, *args, **kwargs)
        self._recorder.note("apex_initialize", models=_count(models), optimizers=_count(optimizers))
        return result

    def scale_loss(self, original: Callable[..., Iterator[Any]], *args: Any, **kwargs: Any) -> Iterator[Any]:
        """Around the generator of `amp.scale_loss`: it stashes gradients at the beginning, and unscales at the end."""
        recorder = self._recorder
        given = inspect.signature(original).bind(*args, **kwargs)
        given.apply_defaults()
        scale = _scale(inspect.unwrap(original).__globals__["_amp_state"], given.arguments["loss_id"])
        fields = {
            "delay_unscale": bool(given.arguments["delay_unscale"]),
            "optimizers": _count(given.arguments["optimizers"]),
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
        recorder.note("scale_loss_exit", **fields)


def _count(one_or_several: Any) -> int:
    if one_or_several is None:
        return 0
    return len(one_or_several) if isinstance(one_or_several, list | tuple) else 1


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
