"""Steps of learning-rate schedulers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from conformance.trace.emit import Recording
from conformance.trace.seams.patching import Seams, replaced, with_subclasses
from conformance.trace.values import Number, number


def observe(recording: Recording) -> Seams:
    """Records the steps of schedulers. If a scheduler steps others, only the outermost step is recorded."""

    def step(original: Callable[..., Any], scheduler: LRScheduler, *args: Any, **kwargs: Any) -> Any:
        optimizer = scheduler.optimizer
        if recording.is_inside("schedule") or recording.watched.find(optimizer) is None:
            return original(scheduler, *args, **kwargs)
        before = _rates(optimizer)
        with recording.inside("schedule"):
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

    yield replaced(LRScheduler, "_initial_step", initial_step)
    for owner in with_subclasses(LRScheduler):
        if "step" in vars(owner):
            yield replaced(owner, "step", step)


def _rates(optimizer: torch.optim.Optimizer) -> list[Number]:
    return [None if (rate := group.get("lr")) is None else number(float(rate)) for group in optimizer.param_groups]
