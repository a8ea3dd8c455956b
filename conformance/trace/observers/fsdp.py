"""FSDP2 (`fully_shard`): it replaces the model's parameters, and its collectives carry its own buffers."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from conformance.trace.emit import Recording
from conformance.trace.seams.importing import when_imported
from conformance.trace.seams.patching import Seams, replaced
from conformance.trace.seams.probes import unsharding
from conformance.trace.state.payloads import GRADIENTS, PARAMETERS

MODULE = "torch.distributed.fsdp._fully_shard._fsdp_param_group"

CARRIED = {"unshard": PARAMETERS, "post_backward": GRADIENTS}
"""Methods of `FSDPParamGroup` that issue collectives, and what these carry."""


def observe(recording: Recording) -> Seams:
    """Keeps watching a model after it is sharded, and tracks what FSDP2's collectives carry."""

    def carrying(what: str) -> Callable[..., Any]:
        def around(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            with recording.payloads.carrying(what):
                return original(*args, **kwargs)

        return around

    def construct(original: Callable[..., None], group: Any, *args: Any, **kwargs: Any) -> None:
        before = [(model, dict(model.named_parameters())) for model in recording.numbers.alive("model")]
        original(group, *args, **kwargs)
        for model, parameters in before:
            if not set(group.modules).isdisjoint(model.modules()):
                recording.watched.add(model)
                recording.watched.replaced(parameters, model)

    def unshard(original: Callable[..., None], parameter: Any) -> None:
        original(parameter)
        recording.watched.stands_for(parameter._unsharded_param, parameter.sharded_param)

    def seams(module: ModuleType) -> Seams:
        yield replaced(module.FSDPParamGroup, "__init__", construct)
        for name, what in CARRIED.items():
            yield replaced(module.FSDPParamGroup, name, carrying(what))

    yield from unsharding(unshard)
    yield when_imported(MODULE, seams)
