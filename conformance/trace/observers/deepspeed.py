"""DeepSpeed: what its engine is going to send, and what its collectives carry in buffers of its own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

from conformance.trace.emit import Recording
from conformance.trace.seams.importing import when_imported
from conformance.trace.seams.patching import Seams, replaced
from conformance.trace.state.deepspeed import exchanges
from conformance.trace.state.payloads import GRADIENTS, PARAMETERS

ENGINE = "deepspeed.runtime.engine"

CARRIED = {
    ("deepspeed.runtime.zero.stage_1_and_2", "DeepSpeedZeroOptimizer", "reduce_ipg_grads"): GRADIENTS,
    (
        "deepspeed.runtime.zero.stage3",
        "DeepSpeedZeroOptimizer_Stage3",
        "_DeepSpeedZeroOptimizer_Stage3__reduce_and_partition_ipg_grads",
    ): GRADIENTS,
    ("deepspeed.runtime.zero.stage3", "DeepSpeedZeroOptimizer_Stage3", "_post_step"): PARAMETERS,
    (
        "deepspeed.runtime.zero.partitioned_param_coordinator",
        "PartitionedParameterCoordinator",
        "fetch_sub_module",
    ): PARAMETERS,
}
"""Methods that issue collectives, by module and class, and what these carry."""


def observe(recording: Recording) -> Seams:
    """Records what engines of a watched model are going to send, and tracks what DeepSpeed's collectives carry."""

    def construct(original: Callable[..., None], engine: Any, *args: Any, **kwargs: Any) -> None:
        original(engine, *args, **kwargs)
        watched = recording.watched
        if any(map(watched.is_model, engine.module.modules())):
            fields = exchanges(engine, watched.size)
            if fields is not None:
                recording.note("zero", **fields)

    def engines(module: ModuleType) -> Seams:
        yield replaced(module.DeepSpeedEngine, "__init__", construct)

    def carrying(kind: str, method: str, what: str, module: ModuleType) -> Seams:
        def around(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            with recording.payloads.carrying(what):
                return original(*args, **kwargs)

        # Another version may do it in another method.
        if hasattr(getattr(module, kind, None), method):
            yield replaced(getattr(module, kind), method, around)

    yield when_imported(ENGINE, engines)
    for (module, kind, method), what in CARRIED.items():
        yield when_imported(module, partial(carrying, kind, method, what))
