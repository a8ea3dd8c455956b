"""Probes: the places where both recorders patch torch, one function per observed thing.

A probe knows the functions and which calls count; a recorder passes the reader of a call, as `around(original, ...)`.
The recorder of `run` reads exact values, the recorder of `watch` sketches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from inspect import GEN_CLOSED, getgeneratorstate, isgenerator, signature
from types import ModuleType
from typing import Any, Protocol

import torch
from torch.nn.modules.module import (
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)
from torch.nn.utils import clip_grad
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from conformance.trace.seams.guarding import Function, Original, harmless, passed_over
from conformance.trace.seams.patching import Seams, replaced, replaced_inside, when_imported, with_subclasses

CLIPS = {"clip_grad_norm_": "norm", "_clip_grads_with_norm_": "norm", "clip_grad_value_": "value"}
"""The functions that clip, each with its kind of clipping."""

_MOST_ITERATORS = 8
"""Lines of a script that clip with an iterator."""


class Doing(Protocol):
    """A recorder's activities in progress: within `inside(what)`, `is_inside(what)`."""

    @property
    def inside(self) -> Callable[[str], AbstractContextManager[None]]: ...

    @property
    def is_inside(self) -> Callable[[str], bool]: ...


def optimizer_steps(before: Function | None = None, after: Function | None = None) -> Sequence[RemovableHandle]:
    """Registers torch's hooks before and after each step, nested ones too."""
    return [
        register(harmless(act))
        for register, act in ((register_optimizer_step_pre_hook, before), (register_optimizer_step_post_hook, after))
        if act is not None
    ]


def registrations(see: Function) -> Sequence[RemovableHandle]:
    """Registers torch's hooks on each `see(module, name, one)`: a module gets a parameter or module of this name, and
    still has the one before."""
    return [
        register(harmless(see))
        for register in (register_module_parameter_registration_hook, register_module_module_registration_hook)
    ]


def engine_calls(run: Function) -> Seams:
    """Calls `run(original, tensors, ...)` for each call of autograd's engine from Python, also within another."""
    yield replaced(torch.autograd, "_engine_run_backward", run)


def begins_at(tensors: Sequence[Any]) -> Any:
    """The node of the graph where a backward starts, None for a leaf. `tensors` may also be `GradientEdge`s."""
    nodes = (tensor.grad_fn if isinstance(tensor, torch.Tensor) else tensor.node for tensor in tensors)
    return next((node for node in nodes if node is not None), None)


def clearing(by_optimizer: Function, by_module: Function) -> Seams:
    """Observes `zero_grad` of optimizers and modules, unless a class overrides it without calling torch's."""
    yield replaced(torch.optim.Optimizer, "zero_grad", by_optimizer)
    yield replaced(torch.nn.Module, "zero_grad", by_module)


@dataclass
class Clip:
    """A call that clips. kind: "norm" or "value". parameters: its parameters; is_used_up: whether they came as an
    iterator that had ended before, None if unknown. given: its arguments by name."""

    kind: str
    parameters: list[torch.Tensor]
    is_used_up: bool | None
    given: dict[str, Any]

    @property
    def limit(self) -> Any:
        return self.given["clip_value" if self.kind == "value" else "max_norm"]

    def norm(self, result: Any) -> Any:
        """The norm before clipping, None if it clips by value."""
        return self.given.get("total_norm", result)


def clipping(
    doing: Doing,
    read: Callable[[Clip], Generator[None, Any]],
    function: Function,
    kind: str,
    iterators: Iterators | None = None,
) -> Function:
    """The `around` of a clipping function: `read(clip)` runs until it yields, and gets the outermost call's result."""
    parameters_of, is_ended = signature(function), (iterators or Iterators()).is_used_up

    @passed_over
    def clip(original: Original, *args: Any, **kwargs: Any) -> Any:
        # Clipping by norm calls two more of these functions.
        if doing.is_inside("clip"):
            return original(*args, **kwargs)
        call = parameters_of.bind(*args, **kwargs)
        call.apply_defaults()
        given = call.arguments["parameters"]
        is_used_up = is_ended(given)
        parameters, call.arguments["parameters"] = kept(given)
        original.instead(*call.args, **call.kwargs)
        reading = read(Clip(kind, parameters, is_used_up and not parameters, call.arguments))
        next(reading)
        with doing.inside("clip"):
            result = original(*call.args, **call.kwargs)
        with suppress(StopIteration):
            reading.send(result)
        return result

    return of(getattr(read, "func", read), clip)


def clips(doing: Doing, read: Callable[[Clip], Generator[None, Any]]) -> Seams:
    """Observes clipping by torch's functions."""
    iterators = Iterators()
    for name, kind in CLIPS.items():
        function = getattr(clip_grad, name)
        yield replaced_inside(function, clipping(doing, read, function, kind, iterators))
    yield when_imported("accelerate.accelerator", lambda module: iterators.passed_on(module.Accelerator))


class Iterators:
    """The last iterators of parameters that clip calls got. An iterator that was given before yields nothing more.

    outer: what is known of that of a wrapper's call, which passes a list on.
    """

    def __init__(self) -> None:
        self._before: deque[Iterator[Any]] = deque(maxlen=_MOST_ITERATORS)
        self._outer: list[bool | None] = []

    def is_used_up(self, given: Any) -> bool | None:
        """Whether it had ended before this call; None if unknown."""
        if self._outer or not isinstance(given, Iterator):
            return self._outer[-1] if self._outer else False
        is_ended = _is_ended(given) or any(given is one for one in self._before)
        self._before.append(given)
        return is_ended or (False if isgenerator(given) else None)

    def passed_on(self, accelerator: type[Any]) -> Seams:
        """Observes the clip calls of Accelerate, which makes a list of the parameters."""

        @passed_over
        def clip(original: Original, owner: Any, parameters: Any, *args: Any, **kwargs: Any) -> Any:
            self._outer.append(self.is_used_up(parameters))
            try:
                return original(owner, parameters, *args, **kwargs)
            finally:
                self._outer.pop()

        for name in ("clip_grad_norm_", "clip_grad_value_"):
            yield replaced(accelerator, name, clip)


def kept(tensors: Any) -> tuple[list[torch.Tensor], Any]:
    """The tensors of an iterable or a single tensor, and the argument to pass on: for a generator, a fresh one."""
    if isinstance(tensors, torch.Tensor):
        return [tensors], tensors
    found = list(tensors)
    return found, (tensor for tensor in found) if isgenerator(tensors) else found


def _is_ended(iterator: Any) -> bool:
    if isgenerator(iterator):
        return getgeneratorstate(iterator) == GEN_CLOSED
    if isinstance(iterator, filter | map):
        # Its iterables, after its function.
        made_of: Any = iterator.__reduce__()[1]
        return any(map(_is_ended, made_of[1:]))
    return False


def scaling(doing: Doing, arounds: dict[str, Function]) -> Seams:
    """Observes these methods of enabled `GradScaler`s, inside "scaler.`name`". A subclass that calls super() counts
    once."""
    of_enabled = {
        name: _outermost(doing, f"scaler.{name}", around, lambda scaler: bool(scaler.is_enabled()))
        for name, around in arounds.items()
    }
    for owner in with_subclasses(torch.amp.GradScaler):
        for name in of_enabled.keys() & vars(owner).keys():
            yield replaced(owner, name, of_enabled[name])


def schedules(doing: Doing, step: Function, initial: Function, counts: Callable[[Any], bool] = lambda _: True) -> Seams:
    """Observes steps of the schedulers that count, inside "schedule": only the outermost if a scheduler steps others.
    Also the `initial` step, which a constructor makes."""
    yield replaced(LRScheduler, "_initial_step", initial)
    outermost = _outermost(doing, "schedule", step, counts)
    # In torch 2.6 ReduceLROnPlateau is no subclass.
    for owner in dict.fromkeys((*with_subclasses(LRScheduler), ReduceLROnPlateau)):
        if "step" in vars(owner):
            yield replaced(owner, "step", outermost)


def _outermost(doing: Doing, what: str, around: Function, counts: Callable[[Any], bool]) -> Function:
    """`around` only the outermost call of a method whose owner counts, inside `what`."""
    around = passed_over(around)

    @passed_over
    def call(original: Function, owner: Any, *args: Any, **kwargs: Any) -> Any:
        if doing.is_inside(what) or not counts(owner):
            return original(owner, *args, **kwargs)
        with doing.inside(what):
            return around(original, owner, *args, **kwargs)

    return of(around, call)


def wrapping(construct: Function) -> Seams:
    """Observes the construction of DDP's wrappers."""
    if torch.distributed.is_available():
        from torch.nn.parallel import DistributedDataParallel

        yield replaced(DistributedDataParallel, "__init__", construct)


def group_calls(arounds: dict[str, Function]) -> Seams:
    """Observes methods of process groups, which Python calls, but DDP's reducer does not. Names differ between
    releases of torch."""
    from torch.distributed.distributed_c10d import ProcessGroup

    for name in arounds.keys() & vars(ProcessGroup).keys():
        yield replaced(ProcessGroup, name, arounds[name])


def unsharding(unshard: Function) -> Seams:
    """Calls `unshard(original, parameter)` where FSDP2 unshards one of its parameters."""
    name = "torch.distributed.fsdp._fully_shard._fsdp_param"
    yield when_imported(name, of(unshard, lambda module: [replaced(module.FSDPParam, "init_unsharded_param", unshard)]))


def flattening(shard: Function) -> Seams:
    """Calls `shard(original, handle)` where FSDP1 shards a flat parameter for the first time."""
    name = "torch.distributed.fsdp._flat_param"
    yield when_imported(name, of(shard, lambda module: [replaced(module.FlatParamHandle, "shard", shard)]))


def compiling(convert: Function, export: Function, exporting: str) -> Seams:
    """Calls `convert(original, converter, ...)` where `torch.compile` compiles a frame, and `export` where it exports
    one, also in the compiler's function `exporting`, which torch 2.6 lacks."""

    def call(original: Function, converter: Any, *args: Any, **kwargs: Any) -> Any:
        return (export if converter._export else convert)(original, converter, *args, **kwargs)

    def seams(module: ModuleType) -> Seams:
        yield replaced(module.ConvertFrameAssert, "__call__", of(export, call))
        if hasattr(module, exporting):
            yield replaced(module, exporting, export)

    yield when_imported("torch._dynamo.convert_frame", of(export, seams))


def of(reader: Function, function: Function) -> Function:
    """`function`, marked to be switched off with the reader if that fails."""
    function.__module__ = reader.__module__
    return function
