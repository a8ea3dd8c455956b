"""Steps of learning-rate schedulers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from conformance.trace.seams.patching import replaced, with_subclasses
from conformance.trace.values import Number, number

if TYPE_CHECKING:
    from conformance.trace.recorder import Recorder


@contextmanager
def observing_schedules(recorder: Recorder) -> Iterator[None]:
    """Have steps of schedulers noted; of one that steps others, the outermost."""
    is_running = False

    def step(original: Callable[..., Any], scheduler: LRScheduler, *args: Any, **kwargs: Any) -> Any:
        nonlocal is_running
        optimizer = scheduler.optimizer
        if is_running or recorder.watched.find(optimizer) is None:
            return original(scheduler, *args, **kwargs)
        before = _rates(optimizer)
        is_running = True
        try:
            result = original(scheduler, *args, **kwargs)
        finally:
            is_running = False
        recorder.note(
            "schedule",
            scheduler=recorder.number("scheduler", scheduler),
            optimizer=recorder.optimizer(optimizer),
            lr_before=before,
            lr_after=_rates(optimizer),
            initial=scheduler._is_initial,
        )
        return result

    with ExitStack() as stack:
        for owner in with_subclasses(LRScheduler):
            if "step" in vars(owner):
                stack.enter_context(replaced(owner, "step", step))
        yield


def _rates(optimizer: torch.optim.Optimizer) -> list[Number]:
    return [None if (rate := group.get("lr")) is None else number(float(rate)) for group in optimizer.param_groups]
