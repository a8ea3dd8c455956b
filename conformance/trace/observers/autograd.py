"""Observes backward passes, and the clearing and clipping of gradients."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

import torch
from torch.nn.utils import clip_grad

from conformance.trace.emit import Recording
from conformance.trace.seams.guarding import Original
from conformance.trace.seams.patching import Seams, replaced_inside
from conformance.trace.seams.probes import Clip, begins_at, clearing, clips, engine_calls, kept
from conformance.trace.state.graphs import Reached, carried
from conformance.trace.state.optimizer_state import held_by
from conformance.trace.tensor_values import Number, elements, number


def _passes(recording: Recording) -> Seams:
    """Records `backward_begin`, `backward_end` and `autograd_grad`.

    An engine call without `accumulate_grad` is `torch.autograd.grad`'s; a backward within a backward belongs to
    checkpointing.
    """

    def run(original: Callable[..., Any], tensors: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        if recording.is_inside("backward"):
            return original(tensors, *args, **kwargs)
        if kwargs.get("accumulate_grad"):
            with recording.accounting():
                return accumulate(original, tensors, *args, **kwargs)
        reached: dict[int, Reached] = {}
        with recording.flow.backward(reached):
            result = original(tensors, *args, **kwargs)
        if reached:
            recording.has_gradients = True
            recording.note("autograd_grad", forwards=sorted(reached))
        return result

    def accumulate(original: Callable[..., Any], tensors: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        root = begins_at(tensors)
        number = recording.backwards
        recording.backwards += 1
        recording.has_gradients = True
        recording.note(
            "backward_begin",
            backward=number,
            root=recording.graphs.number(root),
            **({"contains": contained} if (contained := recording.graphs.contained(root)) else {}),
            syncs=recording.wrappers.syncs,
            gradients=recording.gradients.state(),
        )
        if recording.lines is not None:
            recording.lines.divides(root)
        # This must precede the run, in which the engine frees the graph's saved tensors.
        scaled = carried(root, recording.numbers.alive("scaler"))
        recording.recomputed.clear()
        reached: dict[int, Reached] = {}
        with recording.inside("backward"), recording.flow.backward(reached):
            result = original(tensors, *args, **kwargs)
        forwards = sorted(reached)
        recording.note(
            "backward_end",
            backward=number,
            forwards=forwards,
            scaled=scaled,
            outputs=[reached[forward].outputs for forward in forwards],
            output_gradients=[reached[forward].gradients for forward in forwards],
            **({"recomputed": [*recording.recomputed]} if recording.recomputed else {}),
        )
        return result

    yield from engine_calls(run)


def _clearing(recording: Recording) -> Seams:
    """Records `zero_grad`. If a class overrides it without calling torch's, the gradients count as cleared by hand."""

    def by_optimizer(original: Callable[..., Any], optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        return clear("optimizer", original, optimizer, held_by(optimizer), args, kwargs)

    def by_model(original: Callable[..., Any], model: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        return clear("model", original, model, model.parameters(), args, kwargs)

    def clear(by: str, original: Callable[..., Any], owner: Any, held: Any, args: Any, kwargs: Any) -> Any:
        numbers = recording.watched.numbers(held)
        if not numbers:
            return original(owner, *args, **kwargs)
        set_to_none = bool(args[0] if args else kwargs.get("set_to_none", True))
        with recording.accounting(zeroing=not set_to_none):
            recording.note(
                "zero_grad",
                by=by,
                optimizer=recording.optimizer(owner) if by == "optimizer" else None,
                parameters=numbers,
                set_to_none=set_to_none,
            )
            with recording.watched.reading:
                return original(owner, *args, **kwargs)

    yield from clearing(by_optimizer, by_model)


def _clipping(recording: Recording) -> Seams:
    """Records clipping, and norms computed outside it."""

    def clip(call: Clip) -> Generator[None, Any]:
        numbers = recording.watched.numbers(call.parameters)
        recording.look()
        gradients = recording.watched.gradients(recording.watched.current, only=numbers) if numbers else None
        result = yield
        # A clip of no parameters at all got an exhausted generator.
        if numbers or not call.parameters:
            recording.note(
                "clip",
                kind=call.kind,
                threshold=_number(call.limit),
                norm_type=_number(call.given.get("norm_type")),
                norm=_number(call.norm(result)),
                parameters=numbers,
                gradients=gradients,
            )
            recording.accounted()

    def total_norm(original: Original, tensors: Any, *args: Any, **kwargs: Any) -> Any:
        if recording.is_inside("clip"):
            return original(tensors, *args, **kwargs)
        tensors, given = kept(tensors)
        original.instead(given, *args, **kwargs)
        recording.look()
        result = original(given, *args, **kwargs)
        owners = recording.watched.owners(tensors)
        if owners:
            recording.note("norm", norm=_number(result), parameters=owners)
        return result

    yield from clips(recording, clip)
    yield replaced_inside(clip_grad._get_total_norm, total_norm)


def _number(value: Any) -> Number:
    if isinstance(value, torch.Tensor):
        # Reading a DTensor that is not summed yet would take a collective.
        return next(iter(elements(value)), None)
    return None if value is None else number(float(value))


def observe(recording: Recording) -> Seams:
    """Records backward passes, `zero_grad`, `clip` and `norm`."""
    yield from _passes(recording)
    yield from _clearing(recording)
    yield from _clipping(recording)
