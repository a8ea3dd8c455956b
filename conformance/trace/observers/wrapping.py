"""Observes DDP, FSDP2 and DeepSpeed: how they wrap or shard a model, and the payloads of their collectives."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial, wraps
from types import ModuleType
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from conformance.trace.emit import Recording
from conformance.trace.seams.guarding import surrounded
from conformance.trace.seams.patching import Seams, replaced, when_imported
from conformance.trace.seams.probes import unsharding, wrapping
from conformance.trace.state.deepspeed import exchanges
from conformance.trace.state.payloads import GRADIENTS, PARAMETERS
from conformance.trace.state.topology import OPTIMIZER_MODULE


def _ddp(recording: Recording) -> Seams:
    """Records events of the watched model's DDP wrappers, and ignores wrappers of other models."""

    def construct(original: Callable[..., None], wrapper: DistributedDataParallel, *args: Any, **kwargs: Any) -> None:
        original(wrapper, *args, **kwargs)
        model = next((module for module in wrapper.module.modules() if recording.watched.is_model(module)), None)
        if model is not None:
            recording.numbers.of("wrapper", wrapper)
            recording.note(
                "wrap",
                model=recording.numbers.of("model", model),
                wrapper=type(wrapper).__name__,
                find_unused=wrapper.find_unused_parameters,
            )

    def forward(original: Callable[..., Any], wrapper: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        with recording.inside("forward"), recording.wrappers.inside(wrapper):
            return original(wrapper, *args, **kwargs)

    def no_sync(
        original: Callable[..., AbstractContextManager[None]], wrapper: DistributedDataParallel
    ) -> AbstractContextManager[None]:
        if recording.numbers.known("wrapper", wrapper) is None:
            return original(wrapper)
        return surrounded(lambda: original(wrapper), lambda: recording.region("no_sync"), __name__)

    def register_hook(original: Callable[..., None], reducer: Any, state: object, hook: Callable[..., Any]) -> None:
        # The reducer calls the hook with buckets of gradients.
        @wraps(hook)
        def carrying(state: object, bucket: Any) -> Any:
            with recording.payloads.carrying(GRADIENTS):
                return hook(state, bucket)

        original(reducer, state, carrying)

    yield from wrapping(construct)
    yield replaced(DistributedDataParallel, "forward", forward)
    yield replaced(DistributedDataParallel, "no_sync", no_sync)
    yield replaced(torch.distributed, "_register_comm_hook", register_hook)


FSDP = "torch.distributed.fsdp._fully_shard._fsdp_param_group"
ENGINE = "deepspeed.runtime.engine"
_ZERO = "deepspeed.runtime.zero"
_STAGE_3 = "DeepSpeedZeroOptimizer_Stage3"

CARRIED = {
    (FSDP, "FSDPParamGroup", "unshard"): PARAMETERS,
    (FSDP, "FSDPParamGroup", "post_backward"): GRADIENTS,
    (f"{_ZERO}.stage_1_and_2", "DeepSpeedZeroOptimizer", "reduce_ipg_grads"): GRADIENTS,
    (f"{_ZERO}.stage3", _STAGE_3, f"_{_STAGE_3}__reduce_and_partition_ipg_grads"): GRADIENTS,
    (f"{_ZERO}.stage3", _STAGE_3, "_post_step"): PARAMETERS,
    (f"{_ZERO}.partitioned_param_coordinator", "PartitionedParameterCoordinator", "fetch_sub_module"): PARAMETERS,
    # Their payload is gradients, or compressed copies of them.
    (OPTIMIZER_MODULE, "_DistributedOptimizer", "_allreduce_grad_async"): GRADIENTS,
    (OPTIMIZER_MODULE, "_DistributedOptimizer", "_grouped_allreduce_grad_async"): GRADIENTS,
    (OPTIMIZER_MODULE, "_DistributedOptimizer", "_sparse_allreduce_grad_async"): GRADIENTS,
}
"""Methods of FSDP2, DeepSpeed and Horovod that issue collectives, by module and class, with the payload of these."""


def _carried(recording: Recording) -> Seams:
    """Tracks the payloads of FSDP2's, DeepSpeed's and Horovod's collectives."""

    def seams(kind: str, method: str, what: str, module: ModuleType) -> Seams:
        def carrying(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            with recording.payloads.carrying(what):
                return original(*args, **kwargs)

        # Other versions may use another method.
        if hasattr(getattr(module, kind, None), method):
            yield replaced(getattr(module, kind), method, carrying)

    for (module, kind, method), what in CARRIED.items():
        yield when_imported(module, partial(seams, kind, method, what))


def _fsdp(recording: Recording) -> Seams:
    """Continues to watch a model after it is sharded."""

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

    yield from unsharding(unshard)
    yield when_imported(FSDP, lambda module: [replaced(module.FSDPParamGroup, "__init__", construct)])


def _deepspeed(recording: Recording) -> Seams:
    """Records what the engine of a watched model will send."""

    def construct(original: Callable[..., None], engine: Any, *args: Any, **kwargs: Any) -> None:
        original(engine, *args, **kwargs)
        watched = recording.watched
        if any(map(watched.is_model, engine.module.modules())):
            fields = exchanges(engine, watched.size)
            if fields is not None:
                recording.note("zero", **fields)

    yield when_imported(ENGINE, lambda module: [replaced(module.DeepSpeedEngine, "__init__", construct)])


def observe(recording: Recording) -> Seams:
    """Records `wrap`, `no_sync` and `zero`, and tracks the payloads of collectives."""
    yield from _ddp(recording)
    yield from _fsdp(recording)
    yield from _deepspeed(recording)
    yield from _carried(recording)
