"""FSDP2 (`fully_shard`): it gives models other parameters, and its collectives carry buffers of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any

from conformance.trace.observers.collectives import GRADIENTS, PARAMETERS
from conformance.trace.seams.importing import when_imported
from conformance.trace.seams.patching import replaced

if TYPE_CHECKING:
    from conformance.trace.recorder import Recorder

MODULE = "torch.distributed.fsdp._fully_shard._fsdp_param_group"

CARRIED = {"unshard": PARAMETERS, "post_backward": GRADIENTS}
"""Methods of `FSDPParamGroup` that issue collectives, and what those carry."""


@contextmanager
def observing_fsdp(recorder: Recorder) -> Iterator[None]:
    """Have a model watched still when it is sharded, and known what FSDP2's collectives carry."""

    def carrying(what: str) -> Callable[..., Any]:
        def around(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            with recorder.collectives.carrying(what):
                return original(*args, **kwargs)

        return around

    def construct(original: Callable[..., None], group: Any, *args: Any, **kwargs: Any) -> None:
        original(group, *args, **kwargs)
        for model in recorder.known("model"):
            if not set(group.modules).isdisjoint(model.modules()):
                recorder.watched.add(model)

    with ExitStack() as stack:

        def observe(module: ModuleType) -> None:
            stack.enter_context(replaced(module.FSDPParamGroup, "__init__", construct))
            for name, what in CARRIED.items():
                stack.enter_context(replaced(module.FSDPParamGroup, name, carrying(what)))

        stack.enter_context(when_imported({MODULE: observe}))
        yield
