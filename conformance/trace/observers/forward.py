"""Observes forwards of the watched model: their samples, changes of buffers, and draws of random numbers."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch.nn.utils.parametrize import cached

from conformance.adapter.models import Counting, WithDropout
from conformance.trace.emit import Recording
from conformance.trace.seams.patching import Seams, replaced
from conformance.trace.state.finding import parameters_of
from conformance.trace.tensor_values import values


@contextmanager
def _forwards(recording: Recording) -> Iterator[None]:
    """Records forwards with gradients, and tracks which of them a backward reaches. Replaces `forward` of the class of
    each watched model.

    Hooks on a model would be copied and pickled with it; torch's global hooks slow down every module.
    """
    owners: set[type] = set()

    def run(original: Callable[..., Any], module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled() or not recording.watched.is_model(module):
            return original(module, *args, **kwargs)
        # Checkpointing recomputes a forward within the backward.
        if recording.is_inside("backward"):
            recording.recomputed.append(_computes(recording, module, _inputs(args)))
            return original(module, *args, **kwargs)
        # An observed class may call the forward of its base, which may be observed too.
        if recording.is_inside(("forward of", id(module))):
            return original(module, *args, **kwargs)
        # `_note` reads parametrized tensors, whose computation may draw random numbers. The forward reuses them.
        is_parametrized = any("parametrizations" in one._modules for one in module.modules())
        with recording.inside(("forward of", id(module))), cached() if is_parametrized else nullcontext():
            number = _note(recording, module, args)
            output = original(module, *args, **kwargs)
        recording.flow.follow(number, output)
        return output

    with ExitStack() as stack:

        def watch(kind: type[torch.nn.Module]) -> None:
            owner = next(owner for owner in kind.__mro__ if "forward" in vars(owner))
            if owner not in owners:
                owners.add(owner)
                stack.enter_context(replaced(owner, "forward", run))

        stack.callback(recording.flow.forget)
        # Copies of the task's model have its class.
        if recording.rows is not None:
            watch(recording.watched.kind)
        with recording.watched.followed_by(lambda model: watch(type(model))):
            yield


def _note(recording: Recording, module: torch.nn.Module, args: tuple[Any, ...]) -> int:
    # Reading the gradients of a large model takes long, and its backward reads them anyway.
    if recording.watched.is_readable:
        recording.look()
    inputs = _inputs(args)
    rows = [] if recording.rows is None or inputs is None else recording.rows.of(inputs)
    number = recording.forwards
    recording.forwards += 1
    is_foreign = False
    if recording.rows is not None and inputs is not None and rows and not any(row is not None for row in rows):
        is_foreign = recording.rows.are_foreign(inputs)
    if recording.watched.goes_forward(module):
        whose: dict[str, Any] = {"copy": True, "of_copy": recording.numbers.of("copy", module)}
    else:
        whose = recording.watched.handed_out(module.parameters())
    if recording.skipped:
        whose["states"] = [recording.watched.state(optimizer) for optimizer in recording.skipped]
        recording.skipped.clear()
    used = recording.watched.used_by(module)
    weights = recording.watched.weights(used)
    recording.shards()
    if weights is not None and recording.watched.may_be_rounded(used):
        whose["rounded"] = True
    if weights is not None and not all(isinstance(one, torch.nn.Parameter) for one in parameters_of(module).values()):
        whose["replaced"] = True
    recording.payloads.forget_copies()
    wrapper = recording.wrappers.enter_model()
    recording.note(
        "forward",
        forward=number,
        rows=rows,
        foreign=is_foreign,
        wrapper=None if wrapper is None else type(wrapper).__name__,
        syncs=recording.wrappers.syncs,
        computes=_computes(recording, module, inputs),
        training=module.training,
        weights=weights,
        **whose,
    )
    return number


def _inputs(args: tuple[Any, ...]) -> torch.Tensor | None:
    return args[0] if args and isinstance(args[0], torch.Tensor) else None


def _computes(recording: Recording, module: torch.nn.Module, inputs: torch.Tensor | None) -> str | None:
    """The dtype of the products in the task's model; None if its forward is not the task's, so it may cast."""
    own = recording.watched.kind
    if not isinstance(module, own) or type(module).forward is not own.forward:
        return None
    if inputs is None or not inputs.is_floating_point():
        return None
    kind = inputs.device.type
    # Autocast does not change float64.
    is_cast = torch.is_autocast_enabled(kind) and inputs.dtype != torch.float64
    dtype = torch.get_autocast_dtype(kind) if is_cast else inputs.dtype
    return str(dtype).removeprefix("torch.")


def _draws(recording: Recording) -> Seams:
    """Records `draw` for forwards that draw random numbers, including recomputed ones."""

    def run(original: Callable[..., Any], module: WithDropout, inputs: torch.Tensor) -> Any:
        before = _state()
        output = original(module, inputs)
        if (after := _state()) != before:
            recording.note("draw", before=before, after=after)
        return output

    if recording.watched.kind is WithDropout:
        yield replaced(WithDropout, "forward", run)


def _state() -> str:
    """A digest of the CPU generator's state. The cases of this model run only on CPUs."""
    return hashlib.blake2b(torch.get_rng_state().numpy().tobytes(), digest_size=8).hexdigest()


def _buffers(recording: Recording) -> Seams:
    """Records `buffers` for forwards with gradients or that change buffers. Copies of the task's model and functional
    calls with other tensors count too. A forward that only reads buffers may use others, such as an average's."""

    def run(original: Callable[..., Any], module: Counting, *args: Any, **kwargs: Any) -> Any:
        own = module.samples, module.total
        before = values(own, (1, 1))
        try:
            return original(module, *args, **kwargs)
        finally:
            # Checkpointing raises within a forward once it has recomputed enough.
            after = values(own, (1, 1))
            if recording.is_inside("backward"):
                how = "recomputed"
            else:
                how = "with gradients" if torch.is_grad_enabled() else "without gradients"
            if before != after or how != "without gradients":
                number = recording.numbers.of("counting", module)
                recording.counting = number, own
                recording.note("buffers", how=how, model=number, training=module.training, before=before, after=after)

    if recording.watched.kind is Counting:
        yield replaced(Counting, "forward", run)


def observe(recording: Recording) -> Seams:
    """Records `forward`, `draw` and `buffers`."""
    yield _forwards(recording)
    yield from _draws(recording)
    yield from _buffers(recording)
