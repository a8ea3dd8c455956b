"""Records changes of gradients and rates: clearing, clipping, loss scales, schedules."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch

from conformance.trace.seams.guarding import harmless
from conformance.trace.seams.patching import Seams
from conformance.trace.seams.probes import Clip, clearing, clips, scaling, schedules
from conformance.trace.state.graphs import mark
from conformance.trace.state.optimizer_state import held_by, unwrapped
from conformance.watch import records
from conformance.watch.recording.leaves import is_unreduced
from conformance.watch.recording.optimizer_steps import rates
from conformance.watch.recording.output import later
from conformance.watch.recording.parameters import Known
from conformance.watch.recording.recording import Recording
from conformance.watch.recording.weights import Moving


def _clearing(recording: Recording, moving: Moving) -> Seams:
    """Notes `Cleared`."""

    def by_optimizer(original: Any, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        note(held_by(optimizer))
        return original(optimizer, *args, **kwargs)

    def by_module(original: Any, module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        note(list(module.parameters()))
        return original(module, *args, **kwargs)

    def note(parameters: list[Any]) -> None:
        # Gradients that FSDP2 has not reduced yet are in no `.grad`, and stay.
        held = [(known, one) for known, one in recording.parameters.among(parameters) if not is_unreduced(one)]
        if held:
            numbers = [known.number for known, _ in held]
            is_unused = any(known.is_in_window and one.grad is not None for known, one in held)
            moved = is_unused and moving.has_moved(parameters)
            recording.note(records.Cleared(numbers, recording.versions(), recording.site(), moved, recording.within))

    yield from clearing(by_optimizer, by_module)


def _clipping(recording: Recording) -> Seams:
    """Notes `Clipped` for each outermost call, and before it `Limited` if it is by value."""
    yield from clips(recording, partial(noted, recording))


def noted(recording: Recording, call: Clip) -> Generator[None, Any]:
    """Notes one clip call."""

    def sketches(limited: list[tuple[Known, torch.Tensor]]) -> torch.Tensor:
        return recording.sketching.of([(known.sample, gradient) for known, gradient in limited])

    strange = _strange(recording, call.parameters)
    unheld = [one for one in call.parameters if one.grad is not None and not recording.parameters.numbers([one])]
    held = recording.parameters.among(call.parameters if call.kind == "value" and recording.is_looking else ())
    limited = [(known, one.grad) for known, one in held if one.grad is not None and known.is_read]
    before = sketches(limited)
    result = yield
    if limited:
        numbers, samples = [known.number for known, _ in limited], [known.sample for known, _ in limited]
        recording.note(records.Limited(numbers, before, sketches(limited), samples))
    recording.note(
        records.Clipped(
            call.kind,
            recording.parameters.numbers(call.parameters),
            float(call.limit),
            _number(call.norm(result)),
            len(call.parameters),
            recording.site(),
            call.is_used_up,
            strange,
            recording.within,
            len(unheld),
        )
    )


def _strange(recording: Recording, tensors: Sequence[torch.Tensor]) -> list[list[int]]:
    """The shapes of the tensors if all require gradients, but none has one or is in an optimizer; else none."""
    if any(one.grad is not None or not one.requires_grad for one in tensors) or recording.parameters.numbers(tensors):
        return []
    return [list(one.shape) for one in tensors]


def _number(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return None
    if hasattr(value, "to_local"):
        if any(not placement.is_replicate() for placement in value.placements):  # type: ignore[attr-defined]
            # A sum over the shards would need a collective.
            return None
        value = value.to_local()
    return later(float, value)


_FEW = 8
"""Gradients that show whether a script changed all by one factor before they were unscaled."""


def _scaling(recording: Recording) -> Seams:
    """Notes the calls of enabled scalers."""

    def scale(original: Any, scaler: Any, outputs: Any) -> Any:
        recording.numbers.of("scaler", scaler)
        result = original(scaler, outputs)
        mark(result, scaler.get_scale())
        return result

    def unscale(original: Any, scaler: Any, optimizer: Any) -> Any:
        number, factor = recording.optimizer(optimizer), scaler.get_scale()
        held = recording.parameters.held(unwrapped(optimizer)) if recording.is_looking else []
        some = [(known, one.grad) for known, one in held if one.grad is not None and known.is_read][:_FEW]
        recording.note(
            records.Unscaled(
                number,
                factor,
                recording.site(),
                recording.within,
                [known.number for known, _ in some],
                recording.sketching.of([(known.sample, gradient) for known, gradient in some]),
                [known.sample for known, _ in some],
            )
        )
        return original(scaler, optimizer)

    def step(original: Any, scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        number, factor = recording.optimizer(optimizer), scaler.get_scale()
        before = recording.steps[number]
        result = original(scaler, optimizer, *args, **kwargs)
        if recording.steps[number] == before:
            recording.note(records.Skipped(number, factor, recording.site()))
            recording.flush()
        return result

    def update(original: Any, scaler: Any, *args: Any, **kwargs: Any) -> Any:
        before = scaler.get_scale()
        result = original(scaler, *args, **kwargs)
        number = recording.numbers.of("scaler", scaler)
        recording.note(records.Updated(number, before, scaler.get_scale(), recording.site()))
        return result

    yield from scaling(recording, {"scale": scale, "unscale_": unscale, "step": step, "update": update})


_ENDS = ("total_steps", "T_max")
"""Attributes with the number of steps of schedules that run once, such as OneCycleLR."""


def _schedules(recording: Recording) -> Seams:
    """Notes `Scheduled` for each outermost step but that of the constructor, and `Schedule` for each optimizer that has
    one and steps. No `Schedule` in a run that is watched in part: its schedules may step later."""
    made: WeakKeyDictionary[Any, tuple[str, records.Site]] = WeakKeyDictionary()

    def step(original: Any, scheduler: Any, *args: Any, **kwargs: Any) -> Any:
        before = rates(scheduler.optimizer)
        result = original(scheduler, *args, **kwargs)
        recording.note(
            records.Scheduled(
                recording.optimizer(scheduler.optimizer),
                type(scheduler).__name__,
                before,
                rates(scheduler.optimizer),
                recording.site(),
                getattr(scheduler, "last_epoch", 0),
                next((int(end) for name in _ENDS if (end := getattr(scheduler, name, None)) is not None), None),
                any(one is not None for one in (*args, *kwargs.values())),
                rates(scheduler.optimizer, "initial_lr"),
            )
        )
        return result

    def initial(original: Any, scheduler: Any) -> Any:
        with recording.inside("schedule"):
            result = original(scheduler)
        if recording.settings.steps is None:
            made.setdefault(unwrapped(scheduler.optimizer), (type(scheduler).__name__, recording.site()))
        return result

    def note_made() -> None:
        for optimizer, (name, site) in [*made.items()]:
            number = recording.numbers.known("optimizer", optimizer)
            if number is not None and recording.steps[number]:
                recording.note(records.Schedule(number, name, site))
                del made[optimizer]

    recording.before_writing.append(harmless(note_made))
    yield from schedules(recording, step, initial)


def observe(recording: Recording, moving: Moving) -> Seams:
    """Notes `Cleared`, `Clipped`, `Limited`, the calls of enabled scalers, `Scheduled` and `Schedule`."""
    yield from _clearing(recording, moving)
    yield from _clipping(recording)
    yield from _scaling(recording)
    yield from _schedules(recording)
