"""Observes GradScaler, and the learning rates of schedulers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from conformance.trace.emit import Recording, note_skip
from conformance.trace.seams.patching import Seams
from conformance.trace.seams.probes import scaling, schedules
from conformance.trace.state.graphs import mark
from conformance.trace.tensor_values import Number, number

Original = Callable[..., Any]
Scaler = torch.amp.GradScaler
Optimizer = torch.optim.Optimizer


def _scalers(recording: Recording) -> Seams:
    """Records the calls of enabled scalers. A subclass that calls super() is recorded once."""

    def scale(original: Original, scaler: Scaler, outputs: Any) -> Any:
        result = original(scaler, outputs)
        factor = scaler.get_scale()
        mark(result, factor)
        recording.note("loss_scaled", scaler=recording.numbers.of("scaler", scaler), scale=number(factor))
        return result

    def unscale(original: Original, scaler: Scaler, optimizer: Optimizer) -> Any:
        if recording.watched.find(optimizer) is None:
            return original(scaler, optimizer)
        with recording.accounting():
            with recording.inside("unscale"):
                result = original(scaler, optimizer)
            recording.note(
                "unscale",
                scaler=recording.numbers.of("scaler", scaler),
                optimizer=recording.optimizer(optimizer),
                scale=number(scaler.get_scale()),
                implicit=recording.is_inside("scaler.step"),
                found_inf=_found_inf(scaler, optimizer),
            )
        if not recording.is_inside("scaler.step"):
            unscaled[id(scaler)].append((optimizer, recording.steps))
        return result

    def step(original: Original, scaler: Scaler, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        unscaled.pop(id(scaler), None)
        steps_before = recording.steps
        factor = number(scaler.get_scale())
        if recording.watched.find(optimizer) is not None:
            recording.look()
            recording.note(
                "scaler_step",
                scaler=recording.numbers.of("scaler", scaler),
                optimizer=recording.optimizer(optimizer),
                scale=factor,
                state=recording.watched.state(optimizer),
            )
        with recording.scaled_by(factor), recording.inside("step"):
            result = original(scaler, optimizer, *args, **kwargs)
        # A step of a foreign optimizer calls no hook, so it is not proof of a skip.
        if recording.steps == steps_before and (isinstance(optimizer, Optimizer) or _found_inf(scaler, optimizer)):
            note_skip(recording, optimizer, factor)
        return result

    def update(original: Original, scaler: Scaler, *args: Any, **kwargs: Any) -> Any:
        before = number(scaler.get_scale())
        # The trainer has skipped these steps by hand, after it found an overflow in the unscaled gradients.
        skipped = [optimizer for optimizer, steps in unscaled.pop(id(scaler), ()) if steps == recording.steps]
        for optimizer in skipped if any(_found_inf(scaler, one) for one in skipped) else ():
            note_skip(recording, optimizer, before)
        result = original(scaler, *args, **kwargs)
        recording.note(
            "update",
            scale_before=before,
            scale_after=number(scaler.get_scale()),
            **_rule(scaler),
            scaler=recording.numbers.of("scaler", scaler),
            **({"given": True} if any(one is not None for one in (*args, *kwargs.values())) else {}),
        )
        return result

    # For each scaler: the optimizers unscaled since its last step or update, with the number of steps until then.
    unscaled = defaultdict[int, list[tuple[Optimizer, int]]](list)
    yield from scaling(recording, {"scale": scale, "unscale_": unscale, "step": step, "update": update})


def _rule(scaler: Scaler) -> dict[str, Any]:
    """The scaler's settings for changes of its scale."""
    return {
        "growth_factor": number(scaler.get_growth_factor()),
        "backoff_factor": number(scaler.get_backoff_factor()),
        "growth_interval": scaler.get_growth_interval(),
    }


def _found_inf(scaler: Scaler, optimizer: Optimizer) -> bool | None:
    found = scaler._per_optimizer_states.get(id(optimizer), {}).get("found_inf_per_device")
    return any(bool(flag) for flag in found.values()) if found else None


def _schedulers(recording: Recording) -> Seams:
    """Records the steps of schedulers. If a scheduler steps others, only the outermost step is recorded."""

    def step(original: Callable[..., Any], scheduler: LRScheduler, *args: Any, **kwargs: Any) -> Any:
        optimizer = scheduler.optimizer
        before = _rates(optimizer)
        result = original(scheduler, *args, **kwargs)
        recording.note(
            "schedule",
            scheduler=recording.numbers.of("scheduler", scheduler),
            optimizer=recording.optimizer(optimizer),
            lr_before=before,
            lr_after=_rates(optimizer),
            initial=recording.is_inside("initial step"),
        )
        return result

    def initial_step(original: Callable[..., Any], scheduler: LRScheduler) -> None:
        with recording.inside("initial step"):
            original(scheduler)

    def counts(scheduler: LRScheduler) -> bool:
        return recording.watched.find(scheduler.optimizer) is not None

    yield from schedules(recording, step, initial_step, counts)


def _rates(optimizer: torch.optim.Optimizer) -> list[Number]:
    return [None if (rate := group.get("lr")) is None else number(float(rate)) for group in optimizer.param_groups]


def observe(recording: Recording) -> Seams:
    """Records the calls of enabled scalers and of schedulers."""
    yield from _scalers(recording)
    yield from _schedulers(recording)
