"""How ranks average: over which group, with a hook, with different numbers of batches."""

from __future__ import annotations

from typing import Any

import torch

from conformance.trace.seams.patching import Seams, replaced
from conformance.trace.seams.probes import wrapping
from conformance.watch import records
from conformance.watch.recording.recording import Recording


def observe(recording: Recording) -> Seams:
    """Notes `Grouped`, `Hooked` and `Joined`."""
    if not torch.distributed.is_available():
        return
    from torch.distributed.algorithms.join import Join
    from torch.nn.parallel import DistributedDataParallel

    def construct(original: Any, wrapper: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(wrapper, *args, **kwargs)
        recording.once(records.Grouped(wrapper.process_group.size()))
        recording.wrappers.add(wrapper)
        return result

    def register(original: Any, wrapper: Any, state: Any, hook: Any) -> Any:
        recording.once(records.Hooked(getattr(hook, "__name__", type(hook).__name__)))
        return original(wrapper, state, hook)

    def register_builtin(original: Any, wrapper: Any, kind: Any) -> Any:
        recording.once(records.Hooked(str(kind)))
        return original(wrapper, kind)

    def enter(original: Any, join: Any) -> Any:
        recording.once(records.Joined())
        return original(join)

    yield from wrapping(construct)
    yield replaced(DistributedDataParallel, "register_comm_hook", register)
    yield replaced(DistributedDataParallel, "_register_builtin_comm_hook", register_builtin)
    yield replaced(Join, "__enter__", enter)


def note_wrapped(recording: Recording, number: int, optimizer: torch.optim.Optimizer) -> None:
    """Note `Wrapped` once, if it is so."""
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    if any(id(parameter) in held for wrapper in list(recording.wrappers) for parameter in wrapper.parameters()):
        own = {name for wrapper in list(recording.wrappers) for name in getattr(wrapper, "parameters_to_ignore", ())}
        pairs = [pair for wrapper in list(recording.wrappers) for pair in wrapper.named_parameters()]
        named = [(name.removeprefix("module."), parameter) for name, parameter in pairs]
        left, inside = (
            recording.parameters.numbers([one for name, one in named if (name in own) == is_left])
            for is_left in (True, False)
        )
        recording.once(records.Wrapped(number, left, inside))
