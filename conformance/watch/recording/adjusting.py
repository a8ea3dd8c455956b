"""What a script does to gradients and rates: clearing, clipping, loss scales, schedules."""

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
from conformance.trace.state.optimizers import held_by, unwrapped
from conformance.watch import records
from conformance.watch.recording.output import later
from conformance.watch.recording.parameters import Known, own, sample_of
from conformance.watch.recording.recording import Recording
from conformance.watch.recording.steps import THEN_EVERY, rates
from conformance.watch.sizes import WHOLE

_OFTEN = 16
"""Times that weights are compared: a script does the same in each window."""


class Moving:
    """Whether the script changes weights by their `data` before it clears gradients that no step has used, as one that
    looks for sharp minima does. Their versions do not show that, so they are read, once there is reason to."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._is_armed = self._moves = False
        self._compared = 0
        self._before: dict[int, tuple[int, torch.Tensor]] | None = None

    def begin(self) -> None:
        """A backward pass begins."""
        if self._is_armed and not self._moves and self._compared < _OFTEN:
            self._before = self._weights()

    def has_moved(self, numbers: list[int]) -> bool:
        """Whether these parameters have since the last backward pass, other than by their versions; or it is not
        known."""
        if self._moves or self._compared >= _OFTEN:
            return self._moves
        self._is_armed = True
        if self._before is None:
            return True
        now = self._weights()
        known = [(self._before[number], now[number]) for number in numbers if number in self._before and number in now]
        if any(before != after for (before, _), (after, _) in known):
            return False
        self._compared += 1
        self._moves = any(not torch.equal(before, after) for (_, before), (_, after) in known)
        return self._moves

    def _weights(self) -> dict[int, tuple[int, torch.Tensor]]:
        """By parameter, its version and sketch."""
        held = [(known.number, one) for known, one in self._recording.parameters.all() if not one.is_sparse]
        sketches = self._recording.parameters.sketches([(WHOLE, one.data) for _, one in held])
        return {number: (one._version, sketch) for (number, one), sketch in zip(held, sketches, strict=True)}


def _clearing(recording: Recording, moving: Moving) -> Seams:
    """Notes `Cleared`."""

    def by_optimizer(original: Any, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        note(held_by(optimizer))
        return original(optimizer, *args, **kwargs)

    def by_module(original: Any, module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        note(list(module.parameters()))
        return original(module, *args, **kwargs)

    def note(parameters: list[Any]) -> None:
        numbers = recording.parameters.numbers(parameters)
        if numbers:
            moved = recording.parameters.waits(parameters) and moving.has_moved(numbers)
            recording.note(records.Cleared(numbers, recording.versions(), recording.site(), moved, recording.within))

    yield from clearing(by_optimizer, by_module)


def _clipping(recording: Recording) -> Seams:
    """Notes `Clipped` for each outermost call, and before it `Limited` where it is by value."""
    yield from clips(recording, partial(noted, recording))


def noted(recording: Recording, call: Clip) -> Generator[None, Any]:
    """Notes one call."""

    def sketches(limited: list[tuple[Known, torch.Tensor]]) -> torch.Tensor:
        return recording.parameters.sketches([(known.sample, gradient) for known, gradient in limited])

    strange = _strange(recording, call.parameters)
    by_value = call.kind == "value" and recording.is_looking
    limited = recording.parameters.gradients(call.parameters) if by_value else []
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
        )
    )


def _strange(recording: Recording, tensors: Sequence[torch.Tensor]) -> list[list[int]]:
    """The shapes of those that wait for gradients that never come; none if a single one has its own, or is known."""
    if any(one.grad is not None or not one.requires_grad for one in tensors) or recording.parameters.numbers(tensors):
        return []
    return [list(one.shape) for one in tensors]


def _number(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return None
    if hasattr(value, "to_local"):
        if any(not placement.is_replicate() for placement in value.placements):  # type: ignore[attr-defined]
            # To sum it up would take a collective.
            return None
        value = value.to_local()
    return later(float, value)


def _scaling(recording: Recording) -> Seams:
    """Notes what enabled scalers do."""

    def scale(original: Any, scaler: Any, outputs: Any) -> Any:
        recording.numbers.of("scaler", scaler)
        result = original(scaler, outputs)
        mark(result, scaler.get_scale())
        return result

    def unscale(original: Any, scaler: Any, optimizer: Any) -> Any:
        sizes = _sizes(optimizer) if looks(optimizer) else (None, None)
        number, factor = recording.optimizer(optimizer), scaler.get_scale()
        recording.note(records.Unscaled(number, factor, recording.site(), *sizes, within=recording.within))
        return original(scaler, optimizer)

    def step(original: Any, scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        number, factor = recording.optimizer(optimizer), scaler.get_scale()
        before = recording.steps.get(number, 0)
        result = original(scaler, optimizer, *args, **kwargs)
        if recording.steps.get(number, 0) == before:
            recording.note(records.Skipped(number, factor, recording.site()))
            recording.flush()
        return result

    def update(original: Any, scaler: Any, *args: Any, **kwargs: Any) -> Any:
        before = scaler.get_scale()
        result = original(scaler, *args, **kwargs)
        recording.note(records.Updated(before, scaler.get_scale(), recording.site()))
        return result

    def looks(optimizer: Any) -> bool:
        """As weights are compared: at first each time, then before every tenth step."""
        count = recording.steps.get(recording.optimizer(optimizer), 0)
        looked = count // recording.settings.every
        return recording.settings.looks_at(count) and (sample_of(looked) == WHOLE or looked % THEN_EVERY == 0)

    yield from scaling(recording, {"scale": scale, "unscale_": unscale, "step": step, "update": update})


def _sizes(optimizer: Any) -> tuple[float | None, float | None]:
    """The largest element and the 2-norm of an optimizer's gradients, of what this rank has of them."""
    gradients = [one.grad for group in optimizer.param_groups for one in group["params"] if one.grad is not None]
    dense = [own(gradient.detach()) for gradient in gradients if not gradient.is_sparse]
    dense = [gradient for gradient in dense if gradient.numel()]
    if not dense or len(dense) < len(gradients) or len({gradient.device for gradient in dense}) > 1:
        return None, None
    largest = torch.stack([one.double() for one in torch._foreach_norm(dense, float("inf"))]).amax()
    norm = torch.linalg.vector_norm(torch.stack([one.double() for one in torch._foreach_norm(dense, 2.0)]))
    sizes = torch.stack([largest, norm]).tolist()
    return sizes[0], sizes[1]


_ENDS = ("total_steps", "T_max")
"""Of schedules that go through their shape once, such as OneCycleLR, the number of steps in it."""


def _schedules(recording: Recording) -> Seams:
    """Notes `Scheduled` for each outermost step but the initial one, which the constructor makes, and `Schedule` for
    each optimizer that has one and steps. Of a run that is watched in part nobody knows whether its schedules step."""
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
            if number is not None and recording.steps.get(number):
                recording.note(records.Schedule(number, name, site))
                del made[optimizer]

    recording.before_writing.append(harmless(note_made))
    yield from schedules(recording, step, initial)


def observe(recording: Recording, moving: Moving) -> Seams:
    """Notes `Cleared`, `Clipped`, `Limited`, what enabled scalers do, `Scheduled` and `Schedule`."""
    yield from _clearing(recording, moving)
    yield from _clipping(recording)
    yield from _scaling(recording)
    yield from _schedules(recording)
