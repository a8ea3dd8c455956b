"""Steps of learning-rate schedulers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from conformance.trace.emit import Recording
from conformance.trace.seams.patching import Seams
from conformance.trace.seams.probes import schedules
from conformance.trace.values import Number, number


def observe(recording: Recording) -> Seams:
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
